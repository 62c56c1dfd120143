"""Texts are read from scores by position, compared by their edits, and told from what else the outputs may be."""

import numpy as np
import pytest
from problem_samples import problem

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.golden import Golden
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.problems.inference import infer_problem
from wings.text.text import edit_distance

IMAGE: NamedArrays = {"image": np.random.default_rng(0).normal(size=(24, 1, 32, 100)).astype(np.float32)}


def test_text_joins_repeats_and_drops_blanks() -> None:
    path = np.array([[0, 1, 1, 0, 1, 2, 2, 3, 0]])
    assert problem("text").predictions(np.eye(4, dtype=np.float32)[path]).tolist() == ["aabc"]


PADDING = np.iinfo(np.int64).min
"""Of outputs whose length depends on the sample."""


def test_numbers_of_labels_are_a_text_and_others_are_padding() -> None:
    found, rows = problem("text", ("the ", "cat", "s")), np.array([[0, 1, 2, PADDING], [1, -1, 7, PADDING]])
    assert found.predictions(rows).tolist() == ["the cats", "cat"]
    scores = found.score(found.predictions(rows), np.array(["the cat", "cat"]))
    assert scores == {"character_accuracy": 0.9, "word_accuracy": pytest.approx(2 / 3), "exact_match": 0.5}


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("changed", "passes"), [(1, True), (60, False)])
def test_decoded_texts_of_other_lengths_are_judged_by_their_edits(labelled: bool, changed: int, passes: bool) -> None:
    """Three characters of twenty are lost in 60 of 200 texts, or in one, which has another length then."""
    rng, found = np.random.default_rng(0), problem("text")
    before = np.concatenate([rng.integers(0, 3, (200, 20)), np.full((200, 1), PADDING)], axis=1)
    before[::2, -1] = 0  # lengths differ from the start
    after = before.copy()
    after[1 : 2 * changed : 2, -4:] = PADDING
    truth = found.predictions(before) if labelled else None
    signature = found.signature.replace(primary_output="y")
    comparison = compare_accuracy(Golden({}, {"y": before}, truth), signature, {"y": after})
    assert all(not check.blocks for check in accuracy_checks(AccuracyLimits(), comparison)) == passes


def test_decoded_texts_are_taken_for_texts_where_the_user_says_so() -> None:
    numbers = {"y": np.zeros((24, 5), np.int64)}
    assert infer_problem(IMAGE, numbers, task="text", classes=3).primary_output == "y"
    assert infer_problem(IMAGE, numbers, classes=3).task != "text"


@pytest.mark.parametrize(("one", "other", "edits"), [("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)])
def test_edit_distance_counts_edits(one: str, other: str, edits: int) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == edits


def probabilities(blank: int) -> np.ndarray:
    """Return those of 30 characters at 20 positions, of which one is the likeliest."""
    scores = np.random.default_rng(0).normal(size=(24, 20, 30)).astype(np.float32)
    scores[:, :, blank] += 3
    powers = np.exp(scores)
    return np.asarray(powers / powers.sum(axis=2, keepdims=True))


@pytest.mark.parametrize("form", ["softmax", "logarithms", "batch second"])
def test_scores_of_characters_by_position_are_text(form: str) -> None:
    scores = probabilities(blank=0)
    outputs = {"y": np.log(scores) if form == "logarithms" else scores}
    if form == "batch second":  # a call for each sample returns [positions, 1, classes]
        outputs = {"y": scores[:, :, None]}
    found = infer_problem(IMAGE, outputs)
    assert (found.task, found.primary_output, len(set(found.labels))) == ("text", "y", 29)
    specs = (TensorSpec(name="y", dtype="float32", shape=("batch", *outputs["y"].shape[1:])),)
    image = TensorSpec(name="image", dtype="float32", shape=("batch", 1, 32, 100))
    signature = Signature(inputs=(image,), outputs=specs, primary_output="y", task="text", labels=found.labels)
    read = problem_of(signature).predictions_of(outputs)
    assert all(text.isprintable() for text in read.tolist())


def test_texts_whose_blank_is_last_are_arrays_and_said_to_be_so() -> None:
    found = infer_problem(IMAGE, {"y": probabilities(blank=29)})
    assert found.task == "arrays"
    assert "blank is the last class" in found.reason


def test_vector_of_scores_is_refused_as_a_text() -> None:
    with pytest.raises(StageError, match=r"no output has the form of the problem text: y float32\['n', 5\]"):
        infer_problem(IMAGE, {"y": np.ones((24, 5), np.float32)}, task="text")


def test_edit_of_a_character_that_was_a_guess_costs_little() -> None:
    text, sure, guess = problem("text"), 6.0, 0.1
    scores = np.zeros((50, 4, len(text.signature.labels) + 1), np.float32)
    scores[:, np.arange(4), [1, 2, 1, 2]] = [sure, sure, sure, guess]
    other, worse = scores.copy(), scores.copy()
    other[:, 3, 3], worse[:, :, 3] = 2 * guess, 2 * sure
    texts = [text.predictions(each) for each in (scores, other, worse)]
    losses = [text.expected_loss({"y": scores}, texts[0], each).drop for each in texts[1:]]
    assert losses[0] < 0.01 < 0.4 < losses[1]


@pytest.mark.parametrize("labelled", [True, False])
def test_one_character_that_is_never_read_any_more_is_refused_however_rare(labelled: bool) -> None:
    """One text of twenty has the third character: without it, 99.5 % of the characters are still right."""
    path = np.tile([1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0], (400, 1))
    path[::20, 0] = 3
    before = np.eye(4, dtype=np.float32)[path]
    after = before.copy()
    after[::20, 0] = [0, 0.51, 0, 0.49]
    signature = problem("text").signature
    truth = problem("text").predictions(before) if labelled else None
    comparison = compare_accuracy(Golden({}, {"y": before}, truth), signature, {"y": after})
    checks = accuracy_checks(AccuracyLimits(min_sqnr_db=-100), comparison)
    assert [check.name for check in checks if check.blocks] == ["accuracy.max_class_drop"]
    assert comparison.largest_class_drop.label == "c"
