"""Prices, counts and durations: a few samples are most of what the values vary by, and all others must be right."""

import numpy as np
import pytest

from gauntlet.core.signature import Signature, Task
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.output_noise import usual_samples
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy


def prices(samples: int = 1000) -> np.ndarray:
    """Return values of 2 on average, one in a hundred of which is some hundreds, shape (n, 1)."""
    rng = np.random.default_rng(0)
    usual = rng.gamma(2, 1, samples)
    return np.where(np.arange(samples) % 100, usual, rng.uniform(200, 1000, samples))[:, None].astype(np.float32)


def failed(task: Task, before: np.ndarray, after: np.ndarray, truth: np.ndarray | None = None) -> list[str]:
    signature = Signature(task=task, layout="none", inputs=(), outputs=(), labels=("price",))
    comparison = compare_accuracy(Golden({}, {"y": before}, truth), signature, {"y": after})
    return [check.name for check in accuracy_checks(AccuracyLimits(), comparison) if check.blocks]


def rounded(values: np.ndarray, step: float) -> np.ndarray:
    return (np.round(values / step) * step).astype(np.float32)


@pytest.mark.parametrize(
    ("task", "labelled", "check"),
    [
        ("regression", True, "accuracy.max_accuracy_drop"),
        ("regression", False, "accuracy.max_accuracy_drop"),
        ("arrays", False, "accuracy.min_values_sqnr_db"),
    ],
)
def test_rounding_of_all_usual_prices_to_nothing_is_refused(task: Task, labelled: bool, check: str) -> None:
    before = prices()
    truth = before + np.random.default_rng(1).normal(0, 0.2, before.shape) if labelled else None
    assert failed(task, before, rounded(before, 8), truth) == [check]
    assert failed(task, before, rounded(before, 0.1), truth) == []


@pytest.mark.parametrize("task", ["regression", "arrays"])
def test_noise_far_below_the_few_values_that_count_is_not_refused(task: Task) -> None:
    """Of a thousand days, ten have a claim; a model says nearly nothing for the others."""
    rng = np.random.default_rng(2)
    before = np.where(np.arange(1000) % 100, rng.normal(0, 1e-3, 1000), rng.uniform(1, 5, 1000))[:, None]
    assert (
        failed(task, before.astype(np.float32), (before + rng.normal(0, 3e-3, before.shape)).astype(np.float32)) == []
    )


def test_values_without_a_heavy_tail_are_judged_as_a_whole() -> None:
    rng = np.random.default_rng(3)
    assert usual_samples(rng.normal(size=(200, 3))) is None
    assert usual_samples(np.zeros((5, 1))) is None
    assert usual_samples(np.zeros((0, 1))) is None
    kept = usual_samples(prices())
    assert kept is not None and 0.94 < kept.mean() < 1
