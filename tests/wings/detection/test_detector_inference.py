"""Detectors are inferred from the form of their outputs for real samples, or on request."""

import detector_models
import numpy as np
import pytest
from random_outputs import SAMPLES, SIZE, boxes, corners, floats, of_model, rare, signature_of, softmax

from gauntlet.core.arrays import NamedArrays
from gauntlet.problems import problem_of
from gauntlet.problems.inference import infer_problem


def detectors() -> dict[str, tuple[NamedArrays, int]]:
    """Return the outputs of detectors and the number of their classes, by the form that they have."""
    rows, scores, shares = boxes(), rare(120, 5), corners(boxes()) / np.array([96, 64, 96, 64], np.float32)
    whole = np.concatenate([rows, scores], axis=2)
    given_an_object = np.concatenate([rows, rare(120, 1), softmax(3 * floats(120, 4)).astype(np.float32)], axis=2)
    logits = floats(120, 6)
    first, last = logits + 4 * np.eye(6, dtype=np.float32)[0], logits + 4 * np.eye(6, dtype=np.float32)[5]
    classes = np.random.default_rng(2).integers(0, 7, (SAMPLES, 120))
    kept = np.concatenate([corners(rows), rare(120, 1), classes[:, :, None].astype(np.float32)], axis=2)
    grids = {"cls": floats(5, 8, 12) - 3, "reg": floats(4, 8, 12) / 2 + 0.3}
    return {
        "yolov8": ({"y": np.ascontiguousarray(whole.transpose(0, 2, 1))}, 5),
        "yolov8 transposed": ({"y": whole}, 5),
        "yolov5": ({"y": given_an_object, "raw": floats(3, 8, 12, 9)}, 4),
        "ssd": ({"s": softmax(first).astype(np.float32), "b": shares}, 5),
        "detr": ({"s": last, "b": (rows / np.array([96, 64, 96, 64])).astype(np.float32)}, 5),
        "yolo-nas": ({"b": corners(rows), "s": scores}, 5),
        "yolo-nas of one class": ({"s": rare(120, 1), "b": corners(rows)}, 1),
        "fcos": (grids, 5),
        "suppressed": ({"y": kept}, 0),
        "suppressed apart": (
            {"count": np.full((SAMPLES, 1), 120), "b": corners(rows), "s": rare(120), "c": classes.astype(np.int32)},
            0,
        ),
    }


@pytest.mark.parametrize("form", detectors())
def test_form_of_a_detectors_outputs_is_recognized(form: str) -> None:
    outputs, classes = detectors()[form]
    problem = infer_problem({"image": floats(3, *SIZE)}, outputs)
    assert problem.task == "detection", problem.reason
    assert (problem.decode.kind, problem.decode.transposed) == (form.split()[0], "transposed" in form)
    assert problem.labels == tuple(map(str, range(classes)))
    shown = list(problem_of(signature_of(problem, outputs)).decode(outputs))
    assert len(shown) == SAMPLES
    assert any(prediction.lines() != ["nothing"] for prediction in shown)


def test_detector_is_not_recognized_from_random_samples_but_on_request() -> None:
    outputs, _ = detectors()["yolov8"]
    problem = infer_problem({"image": floats(3, *SIZE)}, outputs, real=False)
    assert (problem.task, "shapes are those of a detector" in problem.reason) == ("arrays", True)
    assert infer_problem({"image": floats(3, *SIZE)}, outputs, real=False, task="detection").task == "detection"


def test_score_that_counts_is_one_that_the_samples_reach() -> None:
    samples = {"images": detector_models.images(SAMPLES)}
    assert of_model(detector_models.yolov8(), samples).decode.shown_score == 0.25  # type: ignore[union-attr]
    decode = of_model(detector_models.yolov8(scale=0.1), samples).decode
    assert 0.005 < decode.shown_score < 0.05
    assert decode.min_score <= decode.shown_score


def test_boxes_in_pixels_of_an_input_of_open_size_are_read() -> None:
    outputs, _ = detectors()["yolov8"]
    signature = signature_of(infer_problem({"image": floats(3, *SIZE)}, outputs), outputs)
    image = signature.inputs[0].replace(shape=("batch", 3, "height", "width"))
    [first, *_] = problem_of(signature.replace(inputs=(image,))).decode(outputs)
    assert first.lines() != ["nothing"]
