"""What the checks say without labels agrees with what labels prove: a small part of `benchmarks/wrong_passes`."""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.datasets.golden import Golden
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy

pytestmark = pytest.mark.slow
LIMITS = AccuracyLimits()
TRAINED_ON = 1300
Linear = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Inputs and truth of the test samples, weights of shape (inputs, outputs), and biases."""


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data, order = load_digits(), np.random.default_rng(0).permutation(1797)
    return data.data[order] / 16, data.target[order]


def classification() -> Linear:
    from sklearn.linear_model import LogisticRegression

    inputs, truth = digits()
    model = LogisticRegression(max_iter=300).fit(inputs[:TRAINED_ON], truth[:TRAINED_ON])
    return inputs[TRAINED_ON:], truth[TRAINED_ON:], model.coef_.T, model.intercept_


def multi_label() -> Linear:
    """Learn whether a digit is even, is above four, and is a multiple of three."""
    from sklearn.linear_model import LogisticRegression

    inputs, digit = digits()
    truth = np.stack([digit % 2 == 0, digit > 4, digit % 3 == 0], axis=1).astype(np.int64)
    models = [LogisticRegression(max_iter=300).fit(inputs[:TRAINED_ON], column[:TRAINED_ON]) for column in truth.T]
    weights, biases = (np.concatenate([getattr(m, name) for m in models]).T for name in ("coef_", "intercept_"))
    return inputs[TRAINED_ON:], truth[TRAINED_ON:], weights, biases


def embedding() -> Linear:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    inputs, truth = digits()
    model = LinearDiscriminantAnalysis(n_components=9, solver="eigen", shrinkage=0.1)
    model.fit(inputs[:TRAINED_ON], truth[:TRAINED_ON])
    return inputs[TRAINED_ON:], truth[TRAINED_ON:], model.scalings_[:, :9], np.zeros(9)


PROBLEMS: dict[Task, Callable[[], Linear]] = {
    "classification": classification,
    "multi-label": multi_label,
    "embedding": embedding,
}


def rounded(weights: np.ndarray, bits: int) -> np.ndarray:
    step = np.abs(weights).max() / (2 ** (bits - 1) - 1)
    return np.round(weights / step) * step


def small_damages(weights: np.ndarray) -> Iterator[np.ndarray]:
    yield rounded(weights, 10)
    yield weights.astype(np.float16)
    yield weights * 1.01
    yield weights + 0.005 * weights.std() * np.random.default_rng(0).standard_normal(weights.shape)


def damages(weights: np.ndarray) -> Iterator[np.ndarray]:
    """Yield weights with fewer bits, more noise, and lost columns."""
    rng = np.random.default_rng(1)
    for bits in (5, 3, 2):
        yield rounded(weights, bits)
    for size in (0.5, 1.0, 2.0):
        yield weights + size * weights.std() * rng.standard_normal(weights.shape)
    for factor in (-1.0, 0.0, 4.0):
        yield weights * np.r_[factor, np.ones(weights.shape[1] - 1)]


Comparison = Callable[[bool], AccuracyComparison]
"""With or without labels."""


def compared(task: Task, weights_of: Callable[[np.ndarray], Iterator[np.ndarray]]) -> Iterator[Comparison]:
    """Yield the comparison of each damage of a problem's weights."""
    inputs, truth, weights, biases = PROBLEMS[task]()
    signature = Signature(
        task=task,
        inputs=(TensorSpec(name="x", dtype="float32", shape=("n", 64)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=("n", weights.shape[1])),),
        labels=tuple(map(str, range(weights.shape[1]))),
    )
    reference = {"y": (inputs @ weights + biases).astype(np.float32)}
    for damaged in weights_of(weights):
        actual = {"y": (inputs @ damaged + biases).astype(np.float32)}
        yield lambda labeled, a=actual: compare_accuracy(
            Golden({}, reference, truth if labeled else None), signature, a
        )


def passes(facts: AccuracyComparison) -> bool:
    return all(check.passed or check.severity == "warning" for check in accuracy_checks(LIMITS, facts))


@pytest.mark.parametrize("task", PROBLEMS)
def test_loss_that_labels_prove_is_refused_without_labels(task: Task) -> None:
    bad = [compare for compare in compared(task, damages) if compare(True).change.low > LIMITS.max_accuracy_drop]

    assert len(bad) >= 3
    assert not any(passes(compare(False)) for compare in bad)


@pytest.mark.parametrize("task", PROBLEMS)
def test_small_damage_passes_with_and_without_labels(task: Task) -> None:
    assert all(passes(compare(labeled)) for compare in compared(task, small_damages) for labeled in (True, False))
