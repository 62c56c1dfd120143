"""Quantization: every recipe kind makes a smaller model that still runs."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest
from calibrated_recipes import calibrated, images, network, quantized
from onnx import TensorProto
from pydantic import ValidationError
from transformer_models import encoder, tokens

from gauntlet.calibration.methods import Entropy, Percentile
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError, StoreUnavailable
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.onnx_model.operator_types import quantized_nodes
from tasks.accuracy import AccuracyConfig, AccuracyFacts, accuracy
from tasks.quantize import methods_of, quantize
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.float16 import Float16
from tasks.quantize.static import StaticInt8, head_nodes
from tasks.structure import StructureConfig, structure

STATIC = [
    StaticInt8(activations=a, weights=w, per_channel=p)
    for (a, w), p in itertools.product([("u8", "s8"), ("s8", "s8"), ("u8", "u8")], [True, False])
]
STATIC += [
    StaticInt8(activations="u16"),
    StaticInt8(format="qoperator"),
    StaticInt8(activations="s8", symmetric=True),
    StaticInt8(reduce_range=True),
    StaticInt8(float_head=True),
    StaticInt8(qdq_placement="inputs"),
    StaticInt8(calibration_method=Percentile(percentile=99.99)),
]
DYNAMIC = [DynamicInt8(weights="u8"), DynamicInt8(weights="s8"), DynamicInt8(reduce_range=True)]
RECIPES = [*STATIC, *DYNAMIC, Float16()]


def test_names_are_short_and_unique_when_every_field_is_changed() -> None:
    assert len({r.name for r in RECIPES}) == len(RECIPES)
    expected = ["static-u8s8", "static-s8s8", "dynamic-u8", "dynamic-s8"]
    assert [
        r.name for r in (StaticInt8(), StaticInt8(activations="s8"), DynamicInt8(), DynamicInt8(weights="s8"))
    ] == expected
    method = Percentile(percentile=99.9)
    everything = StaticInt8(
        format="qoperator", per_channel=False, calibration_method=method, symmetric=True, reduce_range=True
    )
    assert everything.name == "static-u8s8-qoperator-per-tensor-percentile99.9-symmetric-no-overflow"
    assert DynamicInt8(op_types="matmul", reduce_range=True).name == "dynamic-u8-matmul-7bit"
    assert DynamicInt8(per_channel=True).name == "dynamic-u8-channel"


def accuracy_report(trained, out: Workspace, model: Artifact, **config: float) -> Report[AccuracyFacts]:
    return accuracy(AccuracyConfig(**config), out, model=model, golden=trained.golden, test=trained.test)


@pytest.fixture(scope="module")
def ranges(trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """The model calibrated once, for all recipes."""
    out = Workspace(trained.store, tmp_path_factory.mktemp("calibrate"))
    report = calibrated(out, trained.model, trained.artifacts["calibration"], trained.test, *methods_of(tuple(RECIPES)))
    return report.artifacts


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_quantize_keeps_structure_answers_and_signature_when_a_recipe_is_applied(
    trained, workspace: Callable[..., Workspace], ranges: dict[str, Artifact], recipe: Any
) -> None:
    out = workspace(trained.store)
    report = quantize(recipe, out, model=trained.model, **ranges)
    report.raise_if_blocked()
    model = report.artifacts["model"]
    structure(StructureConfig(max_opset=21), out, model=model).raise_if_blocked()
    judged = accuracy_report(trained, out, model, max_accuracy_drop=0.05, min_sqnr_db=2)
    judged.raise_if_blocked()
    assert judged.facts.accuracy > 0.9
    assert np.isfinite(judged.facts.sqnr_db)  # it was quantized: the answers are near, not the same
    assert Signature.read(onnx.load(out.path(model))) == Signature.read(trained.proto())
    assert model.size_bytes < 0.6 * trained.model.size_bytes
    assert report.facts.size_ratio == trained.model.size_bytes / model.size_bytes
    assert report.facts.calibration_images == (128 if recipe.kind == "static" else 0)
    assert list(out.folder.iterdir()) == []
    assert all(trained.store.is_intact(artifact) for artifact in (trained.model, *ranges.values()))


@pytest.mark.slow
def test_ranges_of_entropy_pass_the_gates(trained, workspace: Callable[..., Workspace]) -> None:
    out, recipe = workspace(trained.store), StaticInt8(calibration_method=Entropy())
    ranges = calibrated(out, trained.model, trained.artifacts["calibration"], trained.test, *methods_of((recipe,)))
    model = quantize(recipe, out, model=trained.model, **ranges.artifacts).artifacts["model"]
    accuracy_report(trained, out, model, max_accuracy_drop=0.05, min_sqnr_db=2).raise_if_blocked()


def kinds_of(out: Workspace, report: Report[Any]) -> tuple[onnx.ModelProto, set[int], list[str]]:
    """Return the quantized model, its weights' types, and its operators."""
    proto = onnx.load(out.path(report.artifacts["model"]))
    types = {t.data_type for t in proto.graph.initializer if len(t.dims) > 1}
    return proto, types, [n.op_type for n in proto.graph.node]


def test_sums_of_a_transformer_and_of_a_constant_stay_in_float(
    workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    """Those have outlying channels, and OpenVINO 2026.4 refuses a file in which they are rounded."""
    out, path, samples = workspace(), tmp_path / "model.onnx", tmp_path / "samples.npz"
    for proto, arrays in ((encoder(), tokens()), (onnx.load(network(path)), images())):
        signature_from_graph(proto).write(proto)
        onnx.save(proto, path)
        np.savez(samples, allow_pickle=False, **{proto.graph.input[0].name: arrays})
        model, split = out.store_file(path), out.store_file(samples)
        made, _, _ = kinds_of(out, quantized(StaticInt8(qdq_placement="inputs"), out, model, split, split))
        rounded = {n.output[0] for n in made.graph.node if n.op_type == "DequantizeLinear"}
        sums = {n.output[0] for n in made.graph.node if n.op_type == "Add" and rounded.intersection(n.input)}
        assert sums == ({"sum", "both"} if proto.graph.name == "network" else set())


def test_each_field_of_a_recipe_shows_in_the_model(
    trained, workspace: Callable[..., Workspace], ranges: dict[str, Artifact]
) -> None:
    def apply(recipe: Any) -> tuple[onnx.ModelProto, set[int], list[str]]:
        out = workspace(trained.store)
        return kinds_of(out, quantize(recipe, out, model=trained.model, **ranges))

    assert apply(StaticInt8())[1] == {TensorProto.INT8}
    assert apply(StaticInt8(weights="u8"))[1] == {TensorProto.UINT8}
    assert "QLinearConv" in apply(StaticInt8(format="qoperator"))[2]
    wide, _, _ = apply(StaticInt8(activations="u16"))
    assert TensorProto.UINT16 in {t.data_type for t in wide.graph.initializer}
    around, inputs = apply(StaticInt8())[0], apply(StaticInt8(qdq_placement="inputs"))[0]
    behind = {n.input[0] for n in inputs.graph.node if n.op_type == "QuantizeLinear"}
    assert not behind & {n.output[0] for n in inputs.graph.node if n.op_type in ("Conv", "Gemm")}
    assert "QuantizeLinear" in {n.op_type for n in inputs.graph.node}
    assert len(inputs.graph.node) < len(around.graph.node)
    few, _, _ = apply(StaticInt8(reduce_range=True, format="qoperator"))
    weights = [onnx.numpy_helper.to_array(t) for t in few.graph.initializer if len(t.dims) > 1]
    assert max(int(np.abs(w.astype(np.int32)).max()) for w in weights) == 64
    exact, _, _ = apply(StaticInt8(reduce_range=True))
    weights = [onnx.numpy_helper.to_array(t).astype(int) for t in exact.graph.initializer if len(t.dims) == 4]
    neighbors = [np.abs(w[:, 0::2] + w[:, 1::2]).max() for w in weights if not w.shape[1] % 2]
    assert max(neighbors) <= 128
    assert max(np.abs(w).max() for w in weights) > 64
    even, _, _ = apply(StaticInt8(activations="s8", symmetric=True))
    zeros = [t for t in even.graph.initializer if t.data_type == TensorProto.INT8 and not t.dims]
    assert {int(onnx.numpy_helper.to_array(t)) for t in zeros} == {0}
    operators = apply(DynamicInt8(op_types="matmul"))[2]
    assert {"ConvInteger", "MatMulInteger"}.intersection(operators) == {"MatMulInteger"}
    columns, _, _ = apply(DynamicInt8(op_types="matmul", per_channel=True))
    scales = [t for t in columns.graph.initializer if t.name.endswith("_scale")]
    assert [list(t.dims) for t in scales] == [[10]]  # one for each class
    proto, _, _ = apply(StaticInt8(float_head=True))
    makers = {name: node.op_type for node in proto.graph.node for name in node.output}
    assert [makers[value.name] for value in proto.graph.output] == ["Gemm"]
    half, _, _ = apply(Float16())
    assert [v.type.tensor_type.elem_type for v in (*half.graph.input, *half.graph.output)] == [TensorProto.FLOAT] * 2


@pytest.mark.parametrize("recipe", [StaticInt8(), StaticInt8(format="qoperator"), *DYNAMIC[:1], Float16()])
def test_named_nodes_stay_in_float_when_a_recipe_is_told_so(
    trained, tmp_path: Path, ranges: dict[str, Artifact], recipe: Any
) -> None:
    prepared = trained.store.path(ranges["prepared"])
    source = prepared if recipe.kind == "static" else trained.path
    gemm = next(node for node in onnx.load(source).graph.node if node.op_type == "Gemm")
    weights = next(t for t in onnx.load(source).graph.initializer if t.name == gemm.input[1])
    known = Ranges.read(trained.store.path(ranges["ranges"]))
    recipe.quantize(trained.path, prepared, known, tmp_path / "all.onnx")
    recipe.quantize(trained.path, prepared, known, tmp_path / "some.onnx", float_nodes=frozenset({gemm.name}))
    everything, some = onnx.load(tmp_path / "all.onnx"), onnx.load(tmp_path / "some.onnx")
    size = np.prod(weights.dims)  # the dynamic quantizer transposes them

    def in_float(proto: onnx.ModelProto) -> bool:
        return size in {np.prod(t.dims) for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT}

    assert (in_float(everything), in_float(some)) == (False, True)
    if recipe.kind != "float16":
        assert 0 < quantized_nodes(some) < quantized_nodes(everything)


@pytest.mark.parametrize("images", [1, 7, 20])
def test_quantize_uses_as_many_images_when_a_number_is_set(
    trained, workspace: Callable[..., Workspace], images: int
) -> None:
    out = workspace(trained.store)
    report = quantized(StaticInt8(), out, trained.model, trained.artifacts["calibration"], trained.test, images=images)
    assert report.facts.calibration_images == images


def test_quantize_has_the_same_bytes_when_repeated(trained, workspace: Callable[..., Workspace]) -> None:
    reports = [
        quantized(StaticInt8(), workspace(trained.store), trained.model, trained.artifacts["calibration"], trained.test)
        for _ in range(2)
    ]
    assert reports[0].artifacts == reports[1].artifacts


def test_accuracy_gate_fails_when_calibration_saw_only_zeros(trained, workspace: Callable[..., Workspace]) -> None:
    out = workspace(trained.store)
    real = read_split(out.path(trained.artifacts["calibration"]))
    np.savez(out.folder / "zeros.npz", input=np.zeros((len(real), 3, 32, 32), np.float32), labels=real.labels)
    zeros = out.store_file(out.folder / "zeros.npz")
    model = quantized(StaticInt8(), out, trained.model, zeros, trained.test).artifacts["model"]
    judged = accuracy_report(trained, out, model)
    assert "accuracy.max_accuracy_drop" in {check.name for check in judged.failures}
    assert judged.facts.accuracy < judged.facts.reference_accuracy - 0.2


def test_static_recipe_raises_a_stage_error_when_there_are_no_ranges(
    trained, workspace: Callable[..., Workspace], ranges: dict[str, Artifact]
) -> None:
    recipe, missing = (
        StaticInt8(calibration_method=Percentile(percentile=99)),
        "needs activation ranges; the calibration",
    )
    with pytest.raises(StageError, match=f"static-u8s8: static quantization {missing} failed, or"):
        quantize(StaticInt8(), workspace(trained.store), model=trained.model)
    with pytest.raises(StageError, match=r"no ranges of method .percentile99.; available: minmax, "):
        quantize(recipe, workspace(trained.store), model=trained.model, **ranges)


def test_store_that_is_lost_is_no_fault_of_a_recipe(trained, ranges, workspace: Callable[..., Workspace]) -> None:
    class LosingWorkspace(Workspace):
        def path(self, artifact: Artifact) -> Path:
            if artifact == ranges["prepared"]:
                raise StoreUnavailable("it did not respond")
            return super().path(artifact)

    losing = LosingWorkspace(trained.store, workspace(trained.store).folder)
    with pytest.raises(StoreUnavailable, match=r"^it did not respond"):
        quantize(StaticInt8(), losing, model=trained.model, **ranges)


@pytest.mark.parametrize("recipe", [StaticInt8(), DynamicInt8(), Float16()], ids=lambda r: r.name)
def test_quantize_says_so_when_there_is_nothing_to_quantize(
    workspace: Callable[..., Workspace], tmp_path: Path, recipe: Any
) -> None:
    path, samples = pretrained_models.text_labels(tmp_path)
    out = workspace()
    for split in ("calibration", "test"):
        np.savez(tmp_path / f"{split}.npz", **samples)
    proto = onnx.load(path)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, path)
    splits = [out.store_file(tmp_path / f"{split}.npz") for split in ("calibration", "test")]
    report = quantized(recipe, out, out.store_file(path), *splits)
    assert report.facts.nothing_to_gain.startswith("nothing to quantize among LinearClassifier, ZipMap")


class HalfOutputs(DynamicInt8):
    """A recipe whose outputs are no longer what the signature says."""

    def quantize(self, model: Path, prepared: Any, ranges: Any, target: Path, float_nodes: Any = ()) -> Any:
        super().quantize(model, prepared, ranges, target)
        proto = onnx.load(target)
        cast = onnx_text.model("m (float[n, 10] logits) => (float16[n, 10] half) { half = Cast <to = 10> (logits) }")
        proto.graph.node.append(cast.graph.node[0])
        proto.graph.output[0].CopyFrom(cast.graph.output[0])
        onnx.save(proto, target)
        return {}


def test_recipe_that_changes_outputs_is_refused(trained, workspace: Callable[..., Workspace]) -> None:
    with pytest.raises(StageError, match=r"from .*logits: float32 of 2 axes to .*half: float16 of 2 axes"):
        quantize(HalfOutputs(), workspace(trained.store), model=trained.model)


def test_integer_operators_are_refused_where_only_inputs_are_rounded() -> None:
    with pytest.raises(ValidationError, match="qdq_placement inputs requires format qdq"):
        StaticInt8(qdq_placement="inputs", format="qoperator")


def test_head_is_what_no_product_follows() -> None:
    """Two outputs: scores behind a product, and a shortcut's sum behind two of them."""
    graph = onnx.parser.parse_graph("""
        two_heads (float[n] x, float[n] w) => (sum, shares) {
            [inner] a = Conv(x, w)
            [between] b = Relu(a)
            [left] c = Conv(b, w)
            [right] d = Gemm(b, w)
            [add] sum = Add(c, d)
            [scores] e = MatMul(b, w)
            [softmax] shares = Softmax(e)
        }
    """)
    assert head_nodes(graph) == {"left", "right", "add", "scores", "softmax"}
