"""What outputs mean, in text and in an image."""

from dataclasses import replace

import numpy as np
import pytest

from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.problems import problem_of
from gauntlet.problems.arrays import Arrays, ArraysPrediction
from gauntlet.problems.base import probabilities
from gauntlet.problems.classification import Classification, ClassPrediction


def classifier(*labels: str) -> Classification:
    spec = TensorSpec(name="y", dtype="float32", shape=("n", len(labels)))
    problem = problem_of(Signature(inputs=(spec,), outputs=(spec,), primary_output="y", labels=labels))
    assert isinstance(problem, Classification)
    return problem


def only(problem: Classification, scores: list[float]) -> ClassPrediction:
    [found] = problem.decode({"y": np.array([scores], np.float32)})
    return found


def test_scores_become_softmax_and_the_best_class_is_first() -> None:
    found = only(classifier("cat", "dog", "owl"), [1.0, 3.0, -2.0])
    assert [one.label for one in found.top] == ["dog", "cat", "owl"]
    assert [one.index for one in found.top] == [1, 0, 2]
    assert sum(one.confidence or 0 for one in found.top) == pytest.approx(1)
    assert found.text() == "dog: 87.6 %, cat: 11.8 %, owl: 0.6 %"


def test_temperature_adds_a_calibrated_confidence_and_leaves_the_other() -> None:
    plain = classifier("cat", "dog", "owl")
    found = only(replace(plain, temperature=2.0), [1.0, 3.0, -2.0])
    one, calibrated = only(plain, [1.0, 3.0, -2.0]).top[0], found.top[0]
    assert one.calibrated is None
    assert calibrated.confidence == one.confidence
    assert calibrated.calibrated == pytest.approx(np.exp(1.5) / np.exp([0.5, 1.5, -1.0]).sum())
    assert found.text().startswith("dog: 69.0 %, cat: 25.4 %")


def test_probabilities_stay_as_they_are() -> None:
    assert only(classifier("a", "b"), [0.25, 0.75]).text() == "b: 75.0 %, a: 25.0 %"


def test_huge_scores_do_not_overflow() -> None:
    assert only(classifier("a", "b"), [1e4, -1e4]).text() == "a: 100.0 %, b: 0.0 %"


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_not_finite_name_no_class_and_leave_those_of_others(wrong: float) -> None:
    rows = np.array([[wrong, 0.5], [0.25, 0.75]], np.float32)
    first, second = classifier("a", "b").decode({"y": rows})
    assert (first.top[0].index, first.text()) == (-1, "no class (scores are not finite)")
    assert second.text() == "b: 75.0 %, a: 25.0 %"


def test_probability_that_is_nan_leaves_those_of_others() -> None:
    column = np.array([[0.75], [np.nan]], np.float32)
    assert [one.text().partition(",")[0] for one in classifier("a", "b").decode({"y": column})] == [
        "b: 75.0 %",
        "no class (scores are not finite)",
    ]
    np.testing.assert_array_equal(probabilities(column, logit=False), column)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_class_alone_has_no_confidence_and_no_name_without_labels(shape: tuple[int, ...]) -> None:
    [first, second] = classifier().decode({"y": np.array([3, 0]).reshape(shape)})
    assert (first.text(), first.top[0].confidence, second.text()) == ("3", None, "0")


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_class_that_is_a_text_is_found_among_the_labels(shape: tuple[int, ...]) -> None:
    found = classifier("cat", "dog").decode({"y": np.array(["dog", "owl", "cat"]).reshape(shape)})
    assert [(each.top[0].label, each.top[0].index) for each in found] == [("dog", 1), ("owl", -1), ("cat", 0)]


def test_arrays_are_shown_by_their_first_values() -> None:
    found = ArraysPrediction(outputs={"y": [[1.0, 2.5], [3.25, 4.0], [5.0, 6.0]], "n": 7, "s": ["a"]})
    assert found.text() == "y: 1, 2.5, 3.25, 4, ...; n: 7; s: a"


@pytest.mark.parametrize("shape", [(8, 8, 1), (10, 30, 3), (700, 900, 3)])
def test_drawing_keeps_the_image_whole_above_its_text(shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    spec = TensorSpec(name="y", dtype="float32", shape=("n",))
    arrays = Arrays(Signature(task="arrays", inputs=(spec,), outputs=(spec,)))
    for drawn in (
        classifier("a", "b").draw(image, only(classifier("a", "b"), [1.0, 2.0])),
        arrays.draw(image, ArraysPrediction(outputs={"y": 1.0})),
    ):
        factor = drawn.shape[1] // shape[1]
        assert drawn.shape[0] > factor * shape[0]
        shown = drawn[: factor * shape[0] : factor, ::factor]
        assert (shown == np.broadcast_to(image, (*shape[:2], 3))).all()
