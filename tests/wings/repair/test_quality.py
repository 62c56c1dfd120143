"""What a repair takes for good enough is what the accuracy gate will."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.signature import signature_from_graph
from gauntlet.datasets.splits import ArraySplit
from tasks.accuracy import AccuracyConfig
from wings.repair.quality import Limits, QualitySummary, ReferenceOutputs

COUNT = 40
INPUTS = np.random.default_rng(0).standard_normal((COUNT, 3)).astype(np.float32)
CLASSES = INPUTS.argmax(1)
EYE = np.eye(3)


def write(path: Path, weights: np.ndarray) -> Path:
    """Write a model of two outputs: scores, and the inputs' opposites."""
    text = """two_outputs (float[n,3] x) => (float[n,3] scores, float[n,3] other) <float[3,3] w>
        { scores = MatMul(x, w) other = Neg(x) }"""
    proto = onnx_text.model(text, {"w": weights}, opset=17)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, path)
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Callable[..., ReferenceOutputs]:
    def make(labels: np.ndarray | None, whole: Path | None = None, weights: np.ndarray = EYE) -> ReferenceOutputs:
        return ReferenceOutputs(write(tmp_path / "m.onnx", weights), ArraySplit({"x": INPUTS}, labels), COUNT, whole)

    return make


def allowed(quality: QualitySummary, test_images: int = COUNT, **limits: object) -> bool:
    accuracy = AccuracyConfig.model_validate(limits)
    return Limits(accuracy, test_images).accept(quality)


@pytest.mark.parametrize("output", ["scores", "other"])
def test_answers_are_not_good_when_any_output_is_no_number(
    reference: Callable[..., ReferenceOutputs], output: str
) -> None:
    made = reference(CLASSES)
    assert allowed(made.quality(made.outputs))
    spoilt = made.outputs[output].copy()
    spoilt[0, CLASSES[0]] = np.nan  # the place of a NaN counts as that of the largest score: no answer changes
    quality = made.quality(made.outputs | {output: spoilt})
    assert np.isnan(quality.sqnr_db)
    assert not allowed(quality, min_sqnr_db=-1000, min_values_sqnr_db=-1000)


def test_outputs_that_are_no_predictions_have_a_stricter_limit(reference: Callable[..., ReferenceOutputs]) -> None:
    made = reference(CLASSES)
    noisy = made.outputs["other"] + 0.3 * np.random.default_rng(1).standard_normal((COUNT, 3)).astype(np.float32)
    quality = made.quality(made.outputs | {"other": noisy})
    assert 6 < quality.sqnr_db < 15
    assert not allowed(quality)
    assert allowed(made.quality(made.outputs | {"scores": made.outputs["scores"] - noisy * 1e-6}))


def test_unproven_loss_is_not_good_enough_when_the_gate_rejects_it(reference: Callable[..., ReferenceOutputs]) -> None:
    made = reference(CLASSES)
    same = made.quality(made.outputs)
    assert same.change.drop == 0
    assert allowed(same, unresolved="accept")
    assert not allowed(same, unresolved="reject")  # 40 test images prove no 1 %
    assert allowed(same, 10_000, unresolved="reject")


def test_loss_of_a_pruned_model_is_against_the_whole_one_and_its_noise_against_its_own_answers(
    reference: Callable[..., ReferenceOutputs], tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole.onnx", EYE)
    pruned = reference(CLASSES, whole, weights=np.diag([1, 1, 0]))
    quality = pruned.quality(pruned.outputs)
    right = np.mean(pruned.outputs["scores"].argmax(1) == CLASSES)
    assert right < 0.9
    assert quality.change.drop == pytest.approx(1 - right)
    assert quality.sqnr_db == np.inf
