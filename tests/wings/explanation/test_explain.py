"""Every reason why a candidate is not faster comes from a real model that has it."""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from calibration_feeds import Feeds
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from gauntlet.core.artifact import Artifact
from gauntlet.core.run_report import CAUSE_SEPARATOR
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from gauntlet.targets.ort import OrtCpu
from tasks.benchmark import BenchmarkConfig, benchmark
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select import SelectConfig, choose
from wings.explanation.explain import ExecutionProfile, ExplainFacts, explain, profile_execution, reasons_for

X86 = platform.machine() in ("x86_64", "AMD64")
RNG = np.random.default_rng(0)
IMAGES: dict[str, Any] = {"x": RNG.normal(0, 1, (16, 3, 20, 20)).astype(np.float32)}


def convolutions(between: str | None = None) -> onnx.ModelProto:
    """Return four convolutions; with `between`, nodes from `r#` to `b#` behind each, # being its number."""
    name, nodes = "x", ""
    for i in range(4):
        nodes += f"[conv{i}] c{i} = Conv<pads = [1, 1, 1, 1]>({name}, w{i}) [relu{i}] r{i} = Relu(c{i})\n"
        name = f"b{i}" if between else f"r{i}"
        nodes += (between or "").replace("#", str(i))
    text = f"""
        convolutions (float[batch,3,20,20] x) => (float[batch,8,20,20] y)
        <float[32,3,3,3] w0, float[48,32,3,3] w1, float[48,48,3,3] w2, float[8,48,3,3] w3>
        {{
            {nodes}
            [last] y = Identity({name})
        }}
    """
    return onnx_text.model(text)


# Transpose with two others in between, so that no optimizer takes them for nothing.
TURNED_AROUND = """
    t# = Transpose<perm = [0, 2, 3, 1]>(r#)
    axis# = Constant<value_int = 3>()
    s# = CumSum(t#, axis#)
    b# = Transpose<perm = [0, 3, 1, 2]>(s#)
"""
WAVES = "s# = Sin(r#) b# = Cos(s#)"


def softmaxes() -> onnx.ModelProto:
    """Return a model that is mostly no arithmetic of the kind that INT8 makes fast."""
    chain = "\n".join(f"c{i + 1} = Softmax<axis = 1>(c{i})" for i in range(12))
    text = f"""
        softmaxes (float[batch,3,20,20] x) => (float[batch,16,20,20] y)
        <float[16,3,3,3] w>
        {{
            [conv] c0 = Conv<pads = [1, 1, 1, 1]>(x, w)
            {chain}
            y = Identity(c12)
        }}
    """
    return onnx_text.model(text)


def static(model: onnx.ModelProto, path: Path, **options: Any) -> Path:
    source, prepared = path.with_suffix(".float.onnx"), path.with_suffix(".prepared.onnx")
    onnx.save(model, source)
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    chosen = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True} | options
    feeds = Feeds([{"x": IMAGES["x"][:4]}, {"x": IMAGES["x"][4:8]}])
    quantize_static(prepared, path, feeds, **chosen)
    return path


def dynamic(model: onnx.ModelProto, path: Path) -> Path:
    source = path.with_suffix(".float.onnx")
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QUInt8)
    return path


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def look(path: Path) -> ExecutionProfile:
    return profile_execution(path, IMAGES, 1)


def reasons(found: ExecutionProfile, reference: ExecutionProfile, processor: Processor | None = None) -> dict[str, str]:
    return {reason.name: reason.text for reason in reasons_for(found, reference, processor or Processor.current())}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ExecutionProfile:
    return look(saved(convolutions(), tmp_path_factory.mktemp("reference") / "model.onnx"))


def test_reason_is_the_same_graph_when_the_runtime_would_do_the_same_work_itself(tmp_path: Path) -> None:
    identities = convolutions("b# = Identity(r#)")
    plain = onnx.ModelProto()
    plain.CopyFrom(identities)
    kept = [n for n in plain.graph.node if n.op_type != "Identity" or n.name == "last"]
    for node in kept:
        node.input[0] = node.input[0].replace("b", "r")
    del plain.graph.node[:]
    plain.graph.node.extend(kept)
    found = reasons(look(saved(plain, tmp_path / "plain.onnx")), look(saved(identities, tmp_path / "model.onnx")))
    assert list(found) == ["same_graph"]


def test_reason_is_dynamic_convolution_when_ranges_are_found_at_each_call(
    tmp_path: Path, reference: ExecutionProfile
) -> None:
    found = reasons(look(dynamic(convolutions(), tmp_path / "dynamic.onnx")), reference)
    assert next(iter(found)) == "dynamic_convolution"
    assert "4 ConvInteger" in found["dynamic_convolution"]
    assert "quantize statically" in found["dynamic_convolution"]


@pytest.mark.skipif(not X86, reason="a reason on x86 processors only")
def test_reason_is_signed_activations_when_integer_kernels_take_them_on_x86(
    tmp_path: Path, reference: ExecutionProfile
) -> None:
    as_operators = {"activation_type": QuantType.QInt8, "quant_format": QuantFormat.QOperator}
    signed = look(static(convolutions(), tmp_path / "s8.onnx", **as_operators))
    unsigned = look(static(convolutions(), tmp_path / "u8.onnx"))
    assert signed.signed_activations == 4
    assert "4 integer kernels take signed" in reasons(signed, reference)["signed_activations"]
    assert "signed_activations" not in reasons(unsigned, reference)
    assert "signed_activations" not in reasons(signed, reference, Processor("aarch64", frozenset()))


@pytest.mark.skipif(not X86, reason="on x86 processors only")
def test_signed_activations_are_no_reason_where_the_runtime_makes_them_unsigned(tmp_path: Path) -> None:
    found = look(static(convolutions(), tmp_path / "s8.onnx", activation_type=QuantType.QInt8))
    assert found.integers.integer_nodes == 4
    assert found.signed_activations == 0


def test_reason_is_the_processor_when_it_has_no_vnni(tmp_path: Path, reference: ExecutionProfile) -> None:
    integers = look(static(convolutions(), tmp_path / "u8.onnx"))
    assert "no_vnni" in reasons(integers, reference, Processor("x86_64", frozenset({"avx2"})))
    assert "no_vnni" not in reasons(integers, reference, Processor("x86_64", frozenset({"avx2", "avx512_vnni"})))
    assert "no_vnni" not in reasons(integers, reference, Processor("aarch64", frozenset()))
    floats = look(saved(convolutions(WAVES), tmp_path / "float.onnx"))
    assert "no_vnni" not in reasons(floats, reference, Processor("x86_64", frozenset({"avx2"})))


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        (convolutions(WAVES), "unfused_qdq", "Q/DQ nodes are not fused"),  # nodes between stay in float
        (softmaxes(), "little_arithmetic", ""),  # the time is elsewhere
    ],
    ids=["nodes between", "other nodes"],
)
def test_reason_is_in_what_stays_in_float(tmp_path: Path, model: onnx.ModelProto, name: str, text: str) -> None:
    quantized = look(static(model, tmp_path / "u8.onnx", op_types_to_quantize=["Conv"]))
    assert text in reasons(quantized, look(saved(model, tmp_path / "float.onnx")))[name]


def test_reason_is_float_multiplications_when_large_layers_are_left_out(
    tmp_path: Path, reference: ExecutionProfile
) -> None:
    # Two in a row: of a single one between quantized ones, the runtime would quantize the weights itself.
    path = static(convolutions(), tmp_path / "u8.onnx", nodes_to_exclude=["conv1", "conv2"])
    found = reasons(look(path), reference)
    share = float(found["float_macs"].removeprefix("only ").partition(" %")[0])
    assert 5 < share < 30  # conv1 and conv2 are most of it


def test_reason_is_layout_when_the_model_turns_its_tensors_around(tmp_path: Path, reference: ExecutionProfile) -> None:
    found = reasons(look(saved(convolutions(TURNED_AROUND), tmp_path / "m.onnx")), reference)
    assert "layout" in found
    assert "CumSum nodes" in found["more_work"]


@pytest.mark.parametrize(("outside", "is_small"), [(0.9, True), (0.1, False)])
def test_reason_is_size_when_a_call_is_mostly_outside_the_kernels(
    reference: ExecutionProfile, outside: float, is_small: bool
) -> None:
    short = tuple(entry.replace(ms=entry.ms / 1e4) for entry in reference.profile.operators)
    profile = reference.profile.replace(operators=short, non_kernel_share=outside)
    assert ("small" in reasons(reference.replace(graph="another", profile=profile), reference)) == is_small


def test_reason_is_admitted_to_be_unknown_when_the_profile_shows_none(reference: ExecutionProfile) -> None:
    found = reasons(
        reference.replace(graph="another", profile=reference.profile.replace(non_kernel_share=0.0)), reference
    )
    assert found == {"none_found": found["none_found"]}
    assert "most time is in Conv" in found["none_found"]


def test_rejected_candidate_says_why_when_it_lost_the_race(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    models = {"fp32": saved(convolutions(), tmp_path / "m.onnx")}
    models |= {"dynamic-u8": dynamic(convolutions(), tmp_path / "d.onnx")}
    models |= {"wavy": saved(convolutions(WAVES), tmp_path / "w.onnx")}
    session = open_session(models["fp32"])
    Golden({"real": GoldenCase(IMAGES, batched_inference(session, IMAGES).run(8))}, {}).save(tmp_path / "golden.npz")
    golden = out.store_file(tmp_path / "golden.npz")
    kept: dict[str, Artifact] = {name: out.store_file(path) for name, path in models.items()}
    config = BenchmarkConfig(
        batch_sizes=(1, 2),
        rounds=6,
        block_ms=5,
        profile=False,
        restart_processes=False,
        targets=(OrtCpu(spinning=False, threads=1),),
    )
    race = benchmark(config, out, models=kept, golden=golden).facts
    chosen = SelectConfig(batch=2)

    def told(race: BenchmarkFacts, models: Mapping[str, Artifact]) -> tuple[ExplainFacts, dict[str, str]]:
        report = explain(config, out, models=models, race=race, golden=golden, batch=2, min_speedup=chosen.min_speedup)
        choice = choose(chosen, race, explanations=report.facts)[0]
        return report.facts, {v.candidate: v.reason.partition(CAUSE_SEPARATOR)[2] for v in choice.decisions}

    facts, why = told(race, kept)
    assert facts.failures == {}
    assert {e.candidate for e in facts.explanations} == {"dynamic-u8", "wavy"}
    assert "ConvInteger" in why["dynamic-u8"]
    assert " nodes (" in why["wavy"]
    assert why["fp32"] == ""
    assert CAUSE_SEPARATOR not in choose(chosen, race)[0].decision("wavy").reason
    # One that is proven faster, and not by enough, is told why; one that is fast enough needs no reason.
    assert told(with_speed(race, "wavy", low=1.02, high=1.06), kept)[1]["wavy"]
    fast, why = told(with_speed(race, "wavy", low=1.5, high=1.6), kept)
    assert why["wavy"] == ""
    assert {e.candidate for e in fast.explanations} == {"dynamic-u8"}
    # A reference that cannot be looked at costs the reasons, and not the race.
    (tmp_path / "broken.onnx").write_text("no model")
    facts, why = told(race, kept | {"fp32": out.store_file(tmp_path / "broken.onnx")})
    assert facts.reference is None
    assert set(facts.failures) == {"dynamic-u8", "wavy"}
    assert set(why.values()) == {""}


def with_speed(race: BenchmarkFacts, candidate: str, low: float, high: float) -> BenchmarkFacts:
    speed = {"speedup": (low + high) / 2, "speedup_low": low, "speedup_high": high, "verdict": "faster"}
    speed |= {"stopped_for": None, "stopped_after_round": None, "stopped_as": None}
    results = tuple(
        r.replace(rows=tuple(row.replace(**speed) for row in r.rows)) if r.candidate == candidate else r
        for r in race.results
    )
    return race.replace(results=results)
