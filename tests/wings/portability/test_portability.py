"""The verdict on where an INT8 model may run, and what it is made of."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
import transformer_models
from processors import CASCADE_LAKE

from configs.schema import PipelineConfig
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.operator_libraries import VARIABLE, session_options
from gauntlet.runtime.processor import METADATA_KEY, Processor
from gauntlet.runtime.session import open_session
from tasks.quantize import quantize
from tasks.quantize.dynamic import DynamicInt8
from wings.graph_passes.transformers import TransformerFusions
from wings.portability import PortabilityConfig, PortabilityFacts, portability
from wings.portability.emulation import ARM64_ROOT
from wings.portability.simulation import SaturationSimulator
from wings.weight_only.recipe import WeightOnly

Judge = Callable[..., Report[PortabilityFacts]]
KeepModel = Callable[..., tuple[Workspace, Artifact]]


def test_model_built_to_saturate_needs_vnni_and_its_reduced_form_does_not(twins: object, judge: Judge) -> None:
    full, reduced = judge(twins.full).facts, judge(twins.reduced).facts
    assert full.verdict == "needs VNNI"
    assert full.prediction.saturated_share > 0.001
    assert full.prediction.kernels[0].share > 0.01
    assert (reduced.verdict, reduced.prediction) == ("safe", None)
    assert full.kernels == reduced.kernels == 4


def test_signed_activations_need_vnni_when_arm_judges_them(
    twins: object, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_the_default_of_arm() -> object:
        options = session_options()
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        return options

    here = judge(twins.signed).facts
    monkeypatch.setattr("gauntlet.runtime.session.session_options", with_the_default_of_arm)
    there = judge(twins.signed).facts
    assert (there.verdict, there.kernels) == (here.verdict, here.kernels) == ("needs VNNI", 4)


def test_float_model_is_safe_everywhere(twins: object, judge: Judge) -> None:
    facts = judge(twins.model).facts
    assert (facts.verdict, facts.kernels) == ("safe", 0)


def test_verdict_is_in_the_model_beside_its_signature(twins: object, judge: Judge) -> None:
    report = judge(twins.full, on_unsupported_processor="refuse")
    proto = onnx.load(twins.trained.store.path(report.artifacts["model"]))
    verdict = next(entry.value for entry in proto.metadata_props if entry.key == METADATA_KEY)
    assert '"verdict": "needs VNNI"' in verdict
    assert '"elsewhere": "refuse"' in verdict
    assert Signature.read(proto).labels


def test_candidate_is_rejected_when_it_needs_vnni_and_must_not(twins: object, judge: Judge) -> None:
    report = judge(twins.full, needs_vnni="reject")
    with pytest.raises(GateFailed, match=r"portability.needs_vnni: .*reduce_range"):
        report.raise_if_blocked()
    judge(twins.full, needs_vnni="accept").raise_if_blocked()
    judge(twins.reduced, needs_vnni="reject").raise_if_blocked()


def test_another_recipe_is_no_remedy_for_operators_that_the_source_has(
    trained, judge: Judge, keep_model: Callable[..., tuple[Workspace, Artifact]]
) -> None:
    text = "gelu (float[n,4] x) => (float[n,4] y) { y = com.microsoft.Gelu(x) }"
    _, model = keep_model(onnx_text.model(text, domains={"com.microsoft": 1}), trained.store)
    check = next(c for c in judge(model).checks if c.name == "portability.other_operators")
    assert (check.passed, check.remedy) == (False, "")


def test_little_saturation_is_safe_when_the_limits_say_so(twins: object, judge: Judge) -> None:
    assert judge(twins.full, min_sqnr_db=-99, min_agreement=0).facts.verdict == "safe"
    assert judge(twins.full, min_sqnr_db=200, min_agreement=0).facts.verdict == "needs VNNI"


def test_simulated_network_answers_as_the_runtime_does_here(twins: object) -> None:
    path = twins.trained.store.path(twins.full)
    samples = read_split(twins.trained.store.path(twins.trained.test)).take(slice(0, 8))
    found = SaturationSimulator(path).run(samples)
    simulated = found.saturating if Processor.current().saturates else found.exact
    here = batched_inference(open_session(path), samples).run(8)
    for name, values in simulated.items():
        np.testing.assert_allclose(values, here[name], atol=0.02 * np.abs(here[name]).max())


def test_output_may_be_stored(keep_model: KeepModel) -> None:
    """As the anchors of a detector, which are the same for each image."""
    text = """
        m (float[1,64] x) => (float[1,8] y, float[5,4] anchors) <float[64,8] w, float[5,4] a>
        { y = MatMul(x, w) anchors = Identity(a) }
    """
    signature_from_graph(proto := onnx_text.model(text)).write(proto)
    out, model = keep_model(proto)
    recipe = DynamicInt8(weights="s8", op_types="matmul")
    path = out.path(quantize(recipe, out, model=model).artifacts["model"])
    sample = {"x": np.ones((1, 64), np.float32)}
    found, here = SaturationSimulator(path).run(sample), open_session(path).run(["anchors"], sample)
    assert found.errors  # a kernel of it could saturate
    np.testing.assert_array_equal(found.exact["anchors"], here[0])
    np.testing.assert_array_equal(found.saturating["anchors"], here[0])


def test_one_run_does_for_both_when_nothing_saturates(twins: object) -> None:
    samples = read_split(twins.trained.store.path(twins.trained.test)).take(slice(0, 8))
    for name, same in (("reduced", True), ("full", False)):
        found = SaturationSimulator(twins.trained.store.path(getattr(twins, name))).run(samples)
        assert all((found.saturating[n] is found.exact[n]) == same for n in found.exact)
        assert any(error.saturated for error in found.errors.values()) != same


def test_emulation_is_not_there_when_the_model_may_need_operator_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "operators.so")
    reasons = PortabilityConfig(emulate=("x86-avx2", "arm64")).emulators()
    assert set(reasons.values()) == {"unavailable: emulated processors do not support operator_libraries"}


def test_emulation_that_is_not_there_is_told_and_stops_nothing(
    twins: object, judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv(ARM64_ROOT, str(tmp_path))
    report = judge(twins.reduced, emulate=["arm64"])
    report.raise_if_blocked()
    assert report.facts.emulated[0].runtime.startswith("unavailable: ")
    assert "arm64 unavailable" in next(c for c in report.checks if c.name == "portability.unavailable").detail


def signed_encoder() -> onnx.ModelProto:
    proto = transformer_models.encoder()
    signature_from_graph(proto).write(proto)
    return proto


def judged(out: Workspace, model: Artifact) -> Report[PortabilityFacts]:
    np.savez(out.folder / "tokens.npz", tokens=transformer_models.tokens())
    split = out.store_file(out.folder / "tokens.npz")
    return portability(PortabilityConfig(), out, model=model, samples=split, test=split, emulators={})


def test_report_says_which_operators_other_runtimes_may_refuse(keep_model: KeepModel) -> None:
    out, model = keep_model(signed_encoder())
    stored = judged(out, quantize(WeightOnly(min_weights=1024), out, model=model).artifacts["model"])
    assert (stored.facts.verdict, stored.facts.other_operators) == ("safe", {"com.microsoft::MatMulNBits": 12})
    [warned] = [check for check in stored.checks if check.name == "portability.other_operators"]
    assert (warned.passed, warned.blocks, "MatMulNBits x12" in warned.detail) == (False, False, True)
    at_each_call = judged(out, quantize(DynamicInt8(), out, model=model).artifacts["model"])
    assert at_each_call.facts.other_operators == {}
    assert all(check.passed for check in at_each_call.checks if check.name == "portability.other_operators")


def test_saturation_of_a_fused_and_quantized_model_is_predicted(keep_model: KeepModel) -> None:
    """Its operators have optional outputs without a name."""
    out, model = keep_model(TransformerFusions().transform(signed_encoder()))
    recipe = DynamicInt8(weights="s8", op_types="matmul")
    facts = judged(out, quantize(recipe, out, model=model).artifacts["model"]).facts
    assert facts.kernels == 13
    assert facts.other_operators["com.microsoft::MultiHeadAttention"] == 2


@pytest.mark.parametrize(("needs_vnni", "reduced"), [("accept", False), ("reject", True)])
def test_auto_offers_reduced_ranges_when_a_candidate_that_needs_vnni_is_rejected(
    needs_vnni: str, reduced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processor, "current", lambda: CASCADE_LAKE)
    config = PipelineConfig.model_validate({"quantize": "auto", "portability": {"needs_vnni": needs_vnni}})
    assert any(recipe.reduce_range for recipe in config.quantize) == reduced
