"""The verdict on where an INT8 model may run, and what it is made of."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tasks.artifact import Artifact
from tasks.data.read import read_split
from tasks.errors import GateFailed
from tasks.portability import PortabilityConfig, PortabilityFacts
from tasks.portability.emulate import ARM64_ROOT
from tasks.portability.simulate import Network
from tasks.report import Report
from tasks.runtime.libraries import VARIABLE, session_options
from tasks.runtime.processor import METADATA_KEY, this_processor
from tasks.runtime.session import open_session, run_in_batches
from tasks.signature import Signature

Judge = Callable[..., Report[PortabilityFacts]]


def props(twins: object, artifact: Artifact) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(twins.trained.store.path(artifact)).metadata_props}  # type: ignore[attr-defined]


def test_model_built_to_saturate_needs_vnni_and_its_seven_bit_form_does_not(twins: object, judge: Judge) -> None:
    full, seven_bit = judge(twins.full).facts, judge(twins.seven_bit).facts
    assert full.verdict == "needs VNNI"
    assert full.prediction is not None
    assert full.prediction.saturated_share > 0.001
    assert full.prediction.kernels[0].share > 0.01
    assert (seven_bit.verdict, seven_bit.prediction) == ("safe with 7-bit weights", None)
    assert full.kernels == seven_bit.kernels == 4


def test_signed_activations_need_vnni_when_arm_judges_them(
    twins: object, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_the_default_of_arm() -> object:
        options = session_options()
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        return options

    here = judge(twins.signed).facts
    monkeypatch.setattr("tasks.runtime.session.session_options", with_the_default_of_arm)
    there = judge(twins.signed).facts
    assert (there.verdict, there.kernels) == (here.verdict, here.kernels) == ("needs VNNI", 4)


def test_float_model_is_safe_everywhere(twins: object, judge: Judge) -> None:
    facts = judge(twins.model).facts
    assert (facts.verdict, facts.kernels) == ("safe", 0)


def test_verdict_is_in_the_model_beside_its_signature(twins: object, judge: Judge) -> None:
    report = judge(twins.full, elsewhere="refuse")
    told = props(twins, report.artifacts["model"])
    assert '"verdict": "needs VNNI"' in told[METADATA_KEY]
    assert '"elsewhere": "refuse"' in told[METADATA_KEY]
    assert Signature.read(onnx.load(twins.trained.store.path(report.artifacts["model"]))).labels


def test_candidate_is_rejected_when_it_needs_vnni_and_must_not(twins: object, judge: Judge) -> None:
    report = judge(twins.full, needs_vnni="reject")
    with pytest.raises(GateFailed, match=r"portability.needs_vnni: 1 must be == 0.*reduce_range"):
        report.enforce()
    judge(twins.full, needs_vnni="accept").enforce()
    judge(twins.seven_bit, needs_vnni="reject").enforce()


def test_little_saturation_is_safe_when_the_limits_say_so(twins: object, judge: Judge) -> None:
    assert judge(twins.full, min_sqnr_db=-99, min_top1_agreement=0).facts.verdict == "safe"
    assert judge(twins.full, min_sqnr_db=200, min_top1_agreement=0).facts.verdict == "needs VNNI"


def test_simulated_network_answers_as_the_runtime_does_here(twins: object) -> None:
    path = twins.trained.store.path(twins.full)
    samples = read_split(twins.trained.store.path(twins.trained.test)).take(slice(0, 8))
    found = Network(path).run(samples)
    simulated = found.saturating if this_processor().saturates else found.exact
    here = run_in_batches(open_session(path), samples, 8)
    for name, values in simulated.items():
        np.testing.assert_allclose(values, here[name], atol=0.02 * np.abs(here[name]).max())


def test_one_run_does_for_both_when_nothing_saturates(twins: object) -> None:
    samples = read_split(twins.trained.store.path(twins.trained.test)).take(slice(0, 8))
    for name, same in (("seven_bit", True), ("full", False)):
        found = Network(twins.trained.store.path(getattr(twins, name))).run(samples)
        assert all((found.saturating[n] is found.exact[n]) == same for n in found.exact)
        assert any(loss.saturated for loss in found.losses.values()) != same


def test_emulation_is_not_there_when_the_model_may_need_operator_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "operators.so")
    reasons = PortabilityConfig(emulate=("x86-avx2", "arm64")).emulators()
    assert set(reasons.values()) == {"unavailable: an emulated processor is not given operator_libraries"}


def test_emulation_that_is_not_there_is_told_and_stops_nothing(
    twins: object, judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv(ARM64_ROOT, str(tmp_path))
    report = judge(twins.seven_bit, emulate=["arm64"])
    report.enforce()
    assert report.facts.emulated[0].runtime.startswith("unavailable: ")
    assert "arm64 unavailable" in next(c for c in report.checks if c.name == "portability.unavailable").detail
