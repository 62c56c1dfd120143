"""A candidate that keeps every predicted class and loses the order of the samples does not pass, with labels or not."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.ranking_drop import ranking_drop
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy

LABELS = ("usual", "fraud", "dispute")
RNG = np.random.default_rng(3)
FRAUD = 1 / (1 + np.exp(4.2 - 1.9 * RNG.normal(size=4000)))
HAPPENED = RNG.random(4000) < FRAUD
FLAT = np.where(FRAUD < 0.1, 0.0, FRAUD)
"""No prediction at 0.5 changes."""


def refused_by_ranking(
    before: np.ndarray, after: np.ndarray, truth: np.ndarray | None, task: str = "classification"
) -> bool:
    signature = Signature(task=task, layout="none", inputs=(), outputs=(), labels=LABELS[: before.shape[1]])
    outputs = [{"y": scores.astype(np.float32)} for scores in (before, after)]
    comparison = compare_accuracy(Golden({}, outputs[0], truth), signature, outputs[1])
    checks = accuracy_checks(AccuracyLimits(min_sqnr_db=-100), comparison)
    return any(check.name == "accuracy.max_ranking_drop" and check.blocks for check in checks)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("columns", [lambda p: p[:, None], lambda p: np.stack([1 - p, p], axis=1)])
def test_rare_class_whose_order_is_lost_below_the_threshold_is_refused(columns, labelled: bool) -> None:
    truth = HAPPENED.astype(np.int64) if labelled else None
    assert refused_by_ranking(columns(FRAUD), columns(FLAT), truth)
    assert not refused_by_ranking(columns(FRAUD), columns(np.round(FRAUD * 255) / 255), truth)


@pytest.mark.slow
@pytest.mark.parametrize("labelled", [True, False])
def test_label_among_several_whose_order_is_lost_is_refused(labelled: bool) -> None:
    other = RNG.random((4000, 2))
    before, after = (np.column_stack([fraud, other]) for fraud in (FRAUD, np.where(FRAUD < 0.1, 0.05, FRAUD)))
    truth = np.column_stack([HAPPENED, RNG.random((4000, 2)) < other]).astype(np.int64) if labelled else None
    assert refused_by_ranking(before, after, truth, "multi-label")
    assert not refused_by_ranking(before, before, truth, "multi-label")


def test_second_best_classes_that_become_equal_are_refused_without_labels() -> None:
    scores = RNG.normal(size=(2000, 3)) * 1.5
    before = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    best = before == before.max(axis=1, keepdims=True)
    assert refused_by_ranking(before, np.where(best, before, (1 - before.max(axis=1, keepdims=True)) / 2), None)


def test_areas_are_those_of_scikit_learn_with_equal_scores_too() -> None:
    truth = np.arange(200)[:, None] % 5 == np.arange(3)
    before, after = (np.round(RNG.normal(size=(200, 3)) + truth, places) for places in (6, 0))
    change = ranking_drop(before, after, truth.astype(float))
    expected = [np.mean([roc_auc_score(truth[:, k], s[:, k]) for k in range(3)]) for s in (before, after)]
    np.testing.assert_allclose([change.before, change.after], expected)


def test_probable_memberships_count_as_samples_that_occur_so_often() -> None:
    """A sample of probability 0.25 is one of the class and three of the others."""
    scores = RNG.normal(size=(30, 2))
    truth = np.repeat([[1.0], [0.0], [0.0], [0.0]], 30, axis=1).T.reshape(-1, 1)
    repeated = [np.repeat(scores[:, [k]], 4, axis=0) for k in range(2)]
    change, whole = ranking_drop(scores[:, :1], scores[:, 1:], np.full((30, 1), 0.25)), ranking_drop(*repeated, truth)
    assert change.drop == pytest.approx(whole.drop)


def test_interval_covers_the_true_drop_in_nine_of_ten_tables_or_more() -> None:
    """Both models add noise of one size to the same scores, so nothing is lost."""
    rng, covered = np.random.default_rng(8), 0
    for _ in range(300):
        truth = (rng.random((150, 1)) < 0.2).astype(float)
        shared = truth + rng.normal(size=(150, 1))
        change = ranking_drop(*(shared + 0.5 * rng.normal(size=(150, 1)) for _ in range(2)), truth)
        covered += change.low <= 0 <= change.high
    assert covered >= 0.93 * 300


def test_class_that_no_sample_has_is_left_out() -> None:
    scores = RNG.random((20, 2))
    assert ranking_drop(scores, scores, np.zeros((20, 2))) is None
