"""A class for each position: as many people have it, parts of speech and named entities."""

import numpy as np
import onnx
import onnx_text
import pytest
from sklearn.metrics import f1_score

from configs.brought_model import infer_config
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.truth import task_of
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy

TAGS = ("O", "PER", "LOC", "ORG", "DATE")
RNG = np.random.default_rng(0)
TRUTH = np.where(
    RNG.random((300, 20)) < 0.01, 4, np.where(RNG.random((300, 20)) < 0.1, RNG.integers(1, 4, (300, 20)), 0)
)
SCORES = (np.eye(5)[TRUTH] * 6 + RNG.normal(size=(300, 20, 5))).astype(np.float32)
SIGNATURE = Signature(task="tagging", layout="none", inputs=(), outputs=(), labels=TAGS)


@pytest.mark.parametrize("labelled", [True, False])
def test_half_of_a_rare_tag_cannot_be_lost(labelled: bool) -> None:
    golden = Golden({}, {"y": SCORES}, TRUTH if labelled else None)
    failed = []
    for share in (0, 0.5):  # of the dates, which are at 1 % of the positions, are called O
        scores, dates = SCORES.copy(), SCORES.argmax(axis=2) == 4
        lost = dates & (np.random.default_rng(1).random((300, 20)) < share)
        scores[lost] = scores[lost][:, [4, 1, 2, 3, 0]]
        comparison = compare_accuracy(golden, SIGNATURE, {"y": scores})
        checks = accuracy_checks(AccuracyLimits(min_sqnr_db=-100), comparison)
        failed.append({check.name for check in checks if check.blocks})
    assert failed == [set(), {"accuracy.max_accuracy_drop", "accuracy.max_class_drop"}]


def test_score_is_that_of_scikit_learn_without_the_positions_that_do_not_count() -> None:
    truth, predicted = TRUTH.copy(), SCORES.argmax(axis=2)
    truth[:, 12:] = -100
    predicted[::3, :12] = 1
    expected = f1_score(truth[:, :12].ravel(), predicted[:, :12].ravel(), average="macro")
    assert problem_of(SIGNATURE).score(predicted, truth)["macro_f1"] == pytest.approx(expected)


def test_classes_may_be_the_second_axis() -> None:
    tags = problem_of(SIGNATURE)
    np.testing.assert_array_equal(tags.predictions(SCORES.transpose(0, 2, 1)), tags.predictions(SCORES))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (TRUTH, "tagging"),
        (np.where(TRUTH > 1, -100, TRUTH), "tagging"),
        (np.minimum(TRUTH, 1), "multi-label"),
        (TRUTH[:, 0], "classification"),
    ],
)
def test_labels_tell_the_problem(labels: np.ndarray, expected: str) -> None:
    assert task_of(labels) == expected


@pytest.mark.parametrize(
    ("graph", "labels", "expected"),
    [
        ("y = Unsqueeze(x, a)", np.arange(240).reshape(40, 6) % 3, "tagging"),
        ("y = Unsqueeze(x, a)", np.arange(240).reshape(40, 6) % 2, "tagging"),
        ("y = Relu(x)", np.arange(240).reshape(40, 6) % 2, "multi-label"),
        ("y = Relu(x)", np.arange(240).reshape(40, 6) % 9, "regression"),
        ("y = Cast<to = 7>(x)", np.arange(240).reshape(40, 6) % 9, "tagging"),
    ],
)
def test_outputs_tell_what_several_whole_numbers_are(graph: str, labels, expected: str, tmp_path) -> None:
    rank = ", 1" if "Unsqueeze" in graph else ""
    kind = "int64" if "Cast" in graph else "float"
    text = f"m (float[N,6] x) => ({kind}[N,6{rank}] y) {{ {graph} }}"
    weights = {"a": np.array([2])} if rank else {}
    onnx.save(onnx_text.model(text, weights, opset=13), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(2).normal(size=(40, 6)).astype(np.float32), labels=labels)
    found = infer_config(tmp_path / "m.onnx", tmp_path / "d.npz", None, {})
    assert found.notes["problem"].startswith(f"{expected}, ")
