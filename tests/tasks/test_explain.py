"""Every reason why a candidate is not faster comes from a real model that has it."""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tasks.artifact import Artifact
from tasks.benchmark import BenchmarkConfig, BenchmarkFacts, benchmark
from tasks.data.golden import Case, Golden
from tasks.explain import ExplainFacts, Traits, explain, reasons_for, traits
from tasks.run_report import BECAUSE
from tasks.runtime.processor import Processor, this_processor
from tasks.runtime.session import open_session, run_in_batches
from tasks.select import SelectConfig, select
from tasks.targets.ort_cpu import OrtCpu
from tasks.workspace import Workspace

SIZE = 20
X86 = platform.machine() in ("x86_64", "AMD64")
RNG = np.random.default_rng(0)
IMAGES: dict[str, Any] = {"x": RNG.normal(0, 1, (16, 3, SIZE, SIZE)).astype(np.float32)}
Nodes = list[onnx.NodeProto]


def model_of(nodes: Nodes, weights: dict[str, Any], output: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def convolutions(between: Callable[[str, str], Nodes] | None = None) -> onnx.ModelProto:
    """Return four convolutions, with some nodes behind each."""
    weights: dict[str, Any] = {}
    nodes: Nodes = []
    name, channels = "x", 3
    for i, width in enumerate((32, 48, 48, 8)):
        weights[f"w{i}"] = RNG.normal(0, 0.1, (width, channels, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [name, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        name, channels = f"r{i}", width
        if between:
            nodes += between(name, f"b{i}")
            name = f"b{i}"
    nodes.append(helper.make_node("Identity", [name], ["y"], "last"))
    return model_of(nodes, weights, ["batch", 8, SIZE, SIZE])


def turned_around(name: str, result: str) -> Nodes:
    """Transpose with two others in between, so that no optimiser takes them for nothing."""
    there = helper.make_node("Transpose", [name], [f"{result}/t"], perm=[0, 2, 3, 1])
    middle = helper.make_node("CumSum", [f"{result}/t", "axis"], [f"{result}/s"])
    return [there, middle, helper.make_node("Transpose", [f"{result}/s"], [result], perm=[0, 3, 1, 2])]


def with_axis(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.initializer.append(numpy_helper.from_array(np.int64(3), "axis"))
    return model


def waves(name: str, result: str) -> Nodes:
    return [helper.make_node("Sin", [name], [f"{result}/s"]), helper.make_node("Cos", [f"{result}/s"], [result])]


def softmaxes() -> onnx.ModelProto:
    """Return a model that is mostly no arithmetic of the kind that INT8 makes fast."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c0"], "conv", pads=[1, 1, 1, 1])]
    nodes += [helper.make_node("Softmax", [f"c{i}"], [f"c{i + 1}"], axis=1) for i in range(12)]
    nodes.append(helper.make_node("Identity", ["c12"], ["y"]))
    return model_of(nodes, {"w": RNG.normal(0, 1, (16, 3, 3, 3)).astype(np.float32)}, ["batch", 16, SIZE, SIZE])


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.feeds = iter([{"x": IMAGES["x"][:4]}, {"x": IMAGES["x"][4:8]}])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def static(model: onnx.ModelProto, path: Path, **options: Any) -> Path:
    source, prepared = path.with_suffix(".float.onnx"), path.with_suffix(".prepared.onnx")
    onnx.save(model, source)
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    chosen = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True} | options
    quantize_static(prepared, path, Reader(), **chosen)
    return path


def dynamic(model: onnx.ModelProto, path: Path) -> Path:
    source = path.with_suffix(".float.onnx")
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QUInt8)
    return path


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def look(path: Path) -> Traits:
    return traits(path, IMAGES, 1)


def reasons(found: Traits, reference: Traits, processor: Processor | None = None) -> dict[str, str]:
    return {reason.name: reason.text for reason in reasons_for(found, reference, processor or this_processor())}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Traits:
    return look(saved(convolutions(), tmp_path_factory.mktemp("reference") / "model.onnx"))


def test_reason_is_the_same_graph_when_the_runtime_would_do_the_same_work_itself(tmp_path: Path) -> None:
    identities = convolutions(lambda name, result: [helper.make_node("Identity", [name], [result])])
    plain = onnx.ModelProto()
    plain.CopyFrom(identities)
    kept = [n for n in plain.graph.node if n.op_type != "Identity" or n.name == "last"]
    for node in kept:
        node.input[0] = node.input[0].replace("b", "r")
    del plain.graph.node[:]
    plain.graph.node.extend(kept)
    found = reasons(look(saved(plain, tmp_path / "plain.onnx")), look(saved(identities, tmp_path / "model.onnx")))
    assert list(found) == ["same_graph"]


def test_reason_is_dynamic_convolution_when_ranges_are_found_at_each_call(tmp_path: Path, reference: Traits) -> None:
    found = reasons(look(dynamic(convolutions(), tmp_path / "dynamic.onnx")), reference)
    assert next(iter(found)) == "dynamic_convolution"
    assert "4 ConvInteger" in found["dynamic_convolution"]
    assert "quantise statically" in found["dynamic_convolution"]


@pytest.mark.skipif(not X86, reason="a reason on x86 processors only")
def test_reason_is_signed_activations_when_integer_kernels_take_them_on_x86(tmp_path: Path, reference: Traits) -> None:
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


def test_reason_is_the_processor_when_it_has_no_vnni(tmp_path: Path, reference: Traits) -> None:
    integers = look(static(convolutions(), tmp_path / "u8.onnx"))
    assert "no_vnni" in reasons(integers, reference, Processor("x86_64", frozenset({"avx2"})))
    assert "no_vnni" not in reasons(integers, reference, Processor("x86_64", frozenset({"avx2", "avx512_vnni"})))
    assert "no_vnni" not in reasons(integers, reference, Processor("aarch64", frozenset()))
    floats = look(saved(convolutions(waves), tmp_path / "float.onnx"))
    assert "no_vnni" not in reasons(floats, reference, Processor("x86_64", frozenset({"avx2"})))


def test_reason_is_unfused_qdq_when_nodes_between_stay_in_float(tmp_path: Path) -> None:
    model = convolutions(waves)
    found = reasons(
        look(static(model, tmp_path / "u8.onnx", op_types_to_quantize=["Conv"])),
        look(saved(model, tmp_path / "float.onnx")),
    )
    assert "unfused_qdq" in found
    assert "Q/DQ nodes are not fused" in found["unfused_qdq"]


def test_reason_is_float_multiplications_when_large_layers_are_left_out(tmp_path: Path, reference: Traits) -> None:
    # Two in a row: of a single one between quantised ones, the runtime would quantise the weights itself.
    path = static(convolutions(), tmp_path / "u8.onnx", nodes_to_exclude=["conv1", "conv2"])
    found = reasons(look(path), reference)
    share = float(found["float_macs"].removeprefix("only ").partition(" %")[0])
    assert 5 < share < 30  # conv1 and conv2 are most of it


def test_reason_is_layout_when_the_model_turns_its_tensors_around(tmp_path: Path, reference: Traits) -> None:
    found = reasons(look(saved(with_axis(convolutions(turned_around)), tmp_path / "m.onnx")), reference)
    assert "layout" in found
    assert "CumSum nodes" in found["more_work"]


def test_reason_is_more_work_when_a_pass_adds_nodes(tmp_path: Path, reference: Traits) -> None:
    found = reasons(look(saved(convolutions(waves), tmp_path / "m.onnx")), reference)
    assert "more_work" in found
    assert "Sin" in found["more_work"] or "Cos" in found["more_work"]


def test_reason_is_little_arithmetic_when_the_time_is_elsewhere(tmp_path: Path) -> None:
    model = softmaxes()
    found = reasons(
        look(static(model, tmp_path / "u8.onnx", op_types_to_quantize=["Conv"])),
        look(saved(model, tmp_path / "m.onnx")),
    )
    assert "little_arithmetic" in found


def test_reason_is_size_when_a_call_is_mostly_outside_the_kernels(tmp_path: Path, reference: Traits) -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)]
    found = reasons(look(saved(model_of(nodes, {}, [4]), tmp_path / "m.onnx")), reference)
    assert "small" in found


def test_reason_is_admitted_to_be_unknown_when_the_profile_shows_none(reference: Traits) -> None:
    found = reasons(reference.replace(graph="another", profile=reference.profile.replace(outside_share=0.0)), reference)
    assert found == {"none_found": found["none_found"]}
    assert "most time is in Conv" in found["none_found"]


def test_rejected_candidate_says_why_when_it_lost_the_race(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    models = {"fp32": saved(convolutions(), tmp_path / "m.onnx")}
    models |= {"dynamic-u8": dynamic(convolutions(), tmp_path / "d.onnx")}
    models |= {"wavy": saved(convolutions(waves), tmp_path / "w.onnx")}
    session = open_session(models["fp32"])
    Golden({"real": Case(IMAGES, run_in_batches(session, IMAGES, 8))}, {}).save(tmp_path / "golden.npz")
    golden = out.keep(tmp_path / "golden.npz")
    kept: dict[str, Artifact] = {name: out.keep(path) for name, path in models.items()}
    config = BenchmarkConfig(
        batch_sizes=(1, 2), rounds=6, block_ms=5, profile=False, targets=(OrtCpu(spinning=False, threads=1),)
    )
    race = benchmark(config, out, models=kept, golden=golden).facts
    chosen = SelectConfig(batch=2)

    def told(race: BenchmarkFacts, models: Mapping[str, Artifact]) -> tuple[ExplainFacts, dict[str, str]]:
        report = explain(config, out, models=models, race=race, golden=golden, batch=2, min_speedup=chosen.min_speedup)
        choice = select(chosen, workspace(out.store), race=race, why=report.facts).facts
        return report.facts, {v.candidate: v.reason.partition(BECAUSE)[2] for v in choice.verdicts}

    facts, why = told(race, kept)
    assert facts.failures == {}
    assert {e.candidate for e in facts.explanations} == {"dynamic-u8", "wavy"}
    assert "ConvInteger" in why["dynamic-u8"]
    assert "nodes take" in why["wavy"]
    assert why["fp32"] == ""
    plain = select(chosen, workspace(out.store), race=race).facts
    assert BECAUSE not in plain.verdict("wavy").reason
    # One that is proven faster, and not by enough, is told why; one that is fast enough needs no reason.
    assert told(with_speed(race, "wavy", low=1.02, high=1.06), kept)[1]["wavy"]
    fast, why = told(with_speed(race, "wavy", low=1.5, high=1.6), kept)
    assert why["wavy"] == ""
    assert {e.candidate for e in fast.explanations} == {"dynamic-u8"}
    # A reference that cannot be looked at costs the reasons, and not the race.
    (tmp_path / "broken.onnx").write_text("no model")
    facts, why = told(race, kept | {"fp32": out.keep(tmp_path / "broken.onnx")})
    assert facts.reference is None
    assert set(facts.failures) == {"dynamic-u8", "wavy"}
    assert set(why.values()) == {""}


def with_speed(race: BenchmarkFacts, candidate: str, low: float, high: float) -> BenchmarkFacts:
    speed = {"speedup": (low + high) / 2, "speedup_low": low, "speedup_high": high, "verdict": "faster"}
    speed |= {"dropped_for": None, "dropped_after_round": None, "dropped_as": None}
    results = tuple(
        r.replace(rows=tuple(row.replace(**speed) for row in r.rows)) if r.candidate == candidate else r
        for r in race.results
    )
    return race.replace(results=results)
