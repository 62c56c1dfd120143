"""The negative control: boxes in pixels and scores in one tensor share one INT8 scale, and the gate sees the loss."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import quantized
from random_boxes import CLASSES, imperfect, objects

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import BoxDecoding, Preprocessing, Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.session import open_session
from tasks.accuracy import AccuracyConfig, AccuracyFacts, accuracy
from tasks.quantize.static import StaticInt8

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
