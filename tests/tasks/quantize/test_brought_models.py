"""Recipes on models as other tools write them: each ends with a model that runs, says why, or is rejected."""

from collections.abc import Callable
from typing import Any

import exported_models
import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import applied, brought, calibrated, quantized
from onnxruntime.transformers.float16 import convert_float_to_float16
from random_boxes import CLASSES, imperfect, objects

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import BoxDecoding, Preprocessing, Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from gauntlet.onnx_model.operator_types import quantized_nodes
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from tasks.accuracy import AccuracyConfig, AccuracyFacts, accuracy
from tasks.quantize import QuantizeFacts
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.structure import StructureConfig, structure

STATIC = StaticInt8()
EXACT = STATIC.without_saturation(Processor.current())
DYNAMIC = DynamicInt8(op_types="matmul")


def require_close(out: Workspace, proto: onnx.ModelProto, report: Report[QuantizeFacts]) -> None:
    """The quantized model is valid, has integers in it, and computes about the same as the model."""
    report.raise_if_blocked()
    structure(StructureConfig(), out, model=report.artifacts["model"]).raise_if_blocked()
    assert quantized_nodes(onnx.load(out.path(report.artifacts["model"]))) > 0
    model, samples = brought(out, proto)
    with np.load(out.path(samples)) as file:
        inputs = {name: file[name] for name in file.files}
    before, after = (
        batched_inference(open_session(out.path(each)), inputs).run(16) for each in (model, report.artifacts["model"])
    )
    for name, expected in before.items():
        if expected.dtype.kind == "f":
            scale = np.abs(expected).max()
            assert np.abs(after[name].astype(np.float32) - expected).max() < 0.5 * scale


@pytest.mark.parametrize(
    ("recipe", "make"),
    [
        (EXACT, lambda: exported_models.convolutions(9)),
        (EXACT, lambda: exported_models.convolutions(11)),
        (EXACT, lambda: exported_models.with_weights_as_constants(exported_models.convolutions(12))),
        (EXACT, lambda: exported_models.with_weights_as_inputs(exported_models.convolutions(9))),
        (EXACT, lambda: exported_models.with_number_names(exported_models.convolutions(13))),
        (EXACT, exported_models.upsampling),
        (EXACT, lambda: exported_models.branch_and_loop(11)),
        (EXACT, exported_models.infinite_mask),
        (DYNAMIC, lambda: exported_models.with_weights_as_constants(exported_models.products())),
        (DYNAMIC, lambda: exported_models.with_weights_as_constants(exported_models.branch_and_loop(11))),
        (DYNAMIC, lambda: exported_models.with_number_names(exported_models.products())),
    ],
    ids=[
        *("opset9", "opset11", "constants", "inputs", "number names", "Upsample", "If and Loop", "mask"),
        *("dynamic constants", "dynamic If and Loop", "dynamic number names"),
    ],
)
def test_recipe_quantizes_what_others_export(
    workspace: Callable[..., Workspace], recipe: Any, make: Callable[[], onnx.ModelProto]
) -> None:
    out, proto = workspace(), make()
    require_close(out, proto, applied(recipe, out, proto))


@pytest.mark.parametrize("place", ["value_info", "input"])
def test_weight_that_the_dynamic_quantizer_transposes_may_have_a_stored_shape(
    workspace: Callable[..., Workspace], place: str
) -> None:
    out = workspace()
    text = "m (float[n,64] x) => (float[n,8] y) <float[8,64] w> { y = Gemm<transB = 1>(x, w) }"
    proto = onnx_text.model(text)
    value = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 64])
    getattr(proto.graph, place).append(value)
    require_close(out, proto, applied(DYNAMIC, out, proto))


@pytest.mark.parametrize("recipe", [STATIC, DYNAMIC])
@pytest.mark.parametrize(
    ("bias", "factors"),
    [
        *((f"float{axes} c", "alpha = 0.5, beta = 3.0") for axes in ("", "[1]", "[1,8]", "[16,8]", "[16,1]")),
        ("float c = {0}", "beta = 0.0"),  # as jax2onnx writes it; the quantizer would divide by beta
    ],
)
def test_bias_of_a_product_may_have_any_shape_and_not_count(
    workspace: Callable[..., Workspace], recipe: Any, bias: str, factors: str
) -> None:
    out, product = workspace(), f"y = Gemm<{factors}>(x, w, c)"
    proto = onnx_text.model(f"m (float[16,64] x) => (float[16,8] y) <float[64,8] w, {bias}> {{ {product} }}")
    require_close(out, proto, applied(recipe, out, proto))


@pytest.mark.parametrize("recipe", [STATIC, DYNAMIC])
def test_model_without_standard_operators_has_nothing_to_quantize(
    workspace: Callable[..., Workspace], recipe: Any
) -> None:
    text = 'm (float[n,4] x) => (float[n,4] y) { y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }'
    proto = onnx_text.model(text, domains={"ai.onnx.ml": 1})
    proto.opset_import.append(onnx.helper.make_opsetid("", 18))  # twice, as skl2onnx writes it
    report = applied(recipe, workspace(), proto)
    assert report.facts.nothing_to_gain == "nothing to quantize among Normalizer"


def test_nodes_behind_an_operator_of_another_domain_are_quantized(workspace: Callable[..., Workspace]) -> None:
    """ONNX infers no type behind it, so the quantizer would take none of them."""
    out = workspace()
    text = """
        m (float[n,16] x) => (float[n,8] y) <float[16,32] w1, float[32,8] w2>
        {
            scaled = ai.onnx.ml.Normalizer<norm = "MAX">(x)
            h = MatMul(scaled, w1)
            r = Relu(h)
            y = MatMul(r, w2)
        }
    """
    proto = onnx_text.model(text, domains={"ai.onnx.ml": 1})
    report = applied(STATIC, out, proto)
    require_close(out, proto, report)
    assert report.facts.left_out == {}
    after = onnx.load(out.path(report.artifacts["model"])).graph
    dequantized = {node.output[0] for node in after.node if node.op_type == "DequantizeLinear"}
    assert [set(node.input) <= dequantized for node in after.node if node.op_type == "MatMul"] == [True, True]


def test_computed_weights_stay_in_float_in_the_dynamic_recipe(workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    text = "m (float[n,4,8,8] x, float[8,4,3,3] w) => (float[n,8,?,?] y) { t = Tanh(w) y = Conv(x, t) }"
    report = applied(DynamicInt8(), out, onnx_text.model(text))
    assert "its weights are computed" in report.facts.left_out.values()


def test_nodes_without_a_finite_range_stay_in_float(workspace: Callable[..., Workspace]) -> None:
    report = applied(STATIC, workspace(), exported_models.infinite_mask())
    left = {reason.partition(":")[0] for reason in report.facts.left_out.values()}
    assert left == {"no range of 'masked'"}
    assert len(report.facts.left_out) == 2  # the Where that writes it and the Softmax that reads it


def test_infinite_activation_inside_only_warns(workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    model, samples = brought(out, exported_models.infinite_mask())
    report = calibrated(out, model, samples, samples)
    (check,) = (c for c in report.checks if c.name == "calibrate.non_finite_tensors")
    assert (check.passed, check.severity) == (False, "warning")


def test_float16_weights_are_the_reason_when_nothing_is_left_for_the_dynamic_recipe(
    workspace: Callable[..., Workspace],
) -> None:
    report = applied(DYNAMIC, workspace(), convert_float_to_float16(exported_models.products()))
    assert report.facts.nothing_to_gain == "nothing to quantize among Add, MatMul, Relu; its weights are not float32"


def test_products_are_quantized_when_the_quantizer_fails_on_another_operator(
    workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ONNX Runtime's that is not known yet: only the operators that matter most remain."""
    from onnxruntime.quantization.operators.qdq_base_operator import QDQOperatorBase
    from onnxruntime.quantization.registry import QDQRegistry

    class Faulty(QDQOperatorBase):  # type: ignore[misc]
        def quantize(self) -> None:
            raise KeyError(self.node.output[0])

    monkeypatch.setitem(QDQRegistry, "MaxPool", Faulty)
    out, proto = workspace(), exported_models.convolutions()
    report = applied(STATIC, out, proto)
    require_close(out, proto, report)
    assert any("quantizer fails with it: 'p1'" in reason for reason in report.facts.left_out.values())


IMAGES, SLOTS, SPAN = 60, 16, 4.0
"""A model's inputs are what a backbone might compute for so many boxes: values from -4 to 4."""
JOINED = StaticInt8(reduce_range=True)  # as much noise on every processor
Judge = Callable[[StaticInt8, int], Report[AccuracyFacts]]


def detector(size: int) -> onnx.ModelProto:
    """Boxes in coordinates of `size` pixels, and scores, in one output, as YOLOv8 has them."""
    text = f"""
        detector (float[n,1,{4 + CLASSES},{SLOTS}] x) => (float[n,{4 + CLASSES},{SLOTS}] y)
        <
            float[1,1,1,1] one = {{1}}, float[1,1,1,1] same = {{1}}, float scale = {{{size / 2 / SPAN}}},
            float middle = {{{size / 2}}}, int64[1] axis = {{1}}, int64[2] parts = {{4, {CLASSES}}}
        >
        {{
            [backbone] a = Conv(x, one)
            [head] b = Conv(a, same)
            c = Squeeze(b, axis)
            raw, logits = Split<axis = 1>(c, parts)
            scaled = Mul(raw, scale)
            pixels = Add(scaled, middle)
            scores = Sigmoid(logits)
            [join] y = Concat<axis = 1>(pixels, scores)
        }}
    """
    proto = onnx_text.model(text)
    Signature(
        task="detection",
        inputs=(TensorSpec(name="x", dtype="float32", shape=("n", 1, 4 + CLASSES, SLOTS)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=("n", 4 + CLASSES, SLOTS)),),
        primary_output="y",
        decode=BoxDecoding(kind="yolov8", scores="y"),
        preprocessing=Preprocessing(height=size, width=size, scale=1, mean=(0,), std=(1,)),
        labels=tuple("abc"),
    ).write(proto)
    return proto


def inputs_for(found: np.ndarray, size: int) -> np.ndarray:
    """Return the inputs for which the model says these boxes, shape (n, k, 6)."""
    values = np.zeros((len(found), 1, 4 + CLASSES, SLOTS), np.float32)
    values[:, :, 4:] = -SPAN
    for image, rows in enumerate(found):
        for slot, (left, top, right, bottom, label, score) in enumerate(rows[rows[:, 4] >= 0]):
            box = np.array([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])
            values[image, 0, :4, slot] = (box / size - 0.5) * 2 * SPAN
            values[image, 0, 4 + int(label), slot] = np.clip(np.log(score / (1 - score)), -SPAN, SPAN)
    return values.clip(-SPAN, SPAN)


@pytest.fixture
def judge(keep_model: Callable[..., tuple[Workspace, Artifact]]) -> Judge:
    """Return a function that quantizes the detector of a size with a recipe, and compares it with FP32."""

    def run(recipe: StaticInt8, size: int) -> Report[AccuracyFacts]:
        rng, zoom = np.random.default_rng(0), np.array([size / 96] * 4 + [1, 1], np.float32)
        truth = objects(rng, IMAGES)
        found = imperfect(truth, rng, noise=0.5)
        found[:, :, 5] = found[:, :, 5].clip(0.02, 0.98)
        split = ArraySplit({"x": inputs_for(found * zoom, size)}, truth * zoom)
        space, model = keep_model(detector(size))
        stored = space.store_file(split.save(space.folder, "test"))
        outputs = {"y": open_session(space.path(model)).run(["y"], split.inputs)[0]}
        real = GoldenCase({"x": split.inputs["x"][:4]}, {"y": outputs["y"][:4]})
        Golden({"real": real}, outputs, split.labels).save(space.folder / "golden.npz")
        golden = space.store_file(space.folder / "golden.npz")
        made = quantized(recipe, space, model, stored, stored).artifacts["model"]
        return accuracy(AccuracyConfig(), space, model=made, golden=golden, test=stored)

    return run


@pytest.mark.slow
def test_joined_head_loses_its_precision_and_is_rejected(judge: Judge) -> None:
    small, large = judge(JOINED, 96), judge(JOINED, 640)
    assert min(small.facts.change.before, large.facts.change.before) > 0.5
    assert small.facts.change.low > 0  # scores have three levels
    assert large.facts.change.after < 0.05  # in coordinates of 640 pixels, nothing is found
    for report in (small, large):
        assert "accuracy.max_accuracy_drop" in [check.name for check in report.failures]


@pytest.mark.parametrize("size", [96, 640])
def test_float_head_keeps_the_precision(judge: Judge, size: int) -> None:
    report = judge(JOINED.replace(float_head=True), size)
    assert report.facts.change.drop < 0.02
    assert "accuracy.min_sqnr_db" not in [check.name for check in report.failures]
