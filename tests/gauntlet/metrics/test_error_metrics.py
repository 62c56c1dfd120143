"""The arithmetic of comparison."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gauntlet.metrics.error_metrics import (
    centered_sqnr_db,
    max_abs_error,
    max_rel_error,
    predicted_classes,
    scores_per_class,
    sqnr_db,
    top1_agreement,
)

FINITE = st.floats(-1e6, 1e6, width=32)
MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=FINITE)


@given(outputs=MATRICES)
def test_errors_are_zero_when_a_model_is_compared_with_itself(outputs: np.ndarray) -> None:
    assert max_abs_error(outputs, outputs) == 0
    assert max_rel_error(outputs, outputs) == 0
    assert sqnr_db(outputs, outputs) == math.inf
    assert top1_agreement(outputs, outputs) == 1


@given(outputs=MATRICES, data=st.data())
def test_errors_are_nan_when_a_value_of_one_output_is_nan(outputs: np.ndarray, data: st.DataObject) -> None:
    broken = outputs.copy()
    broken.flat[data.draw(st.integers(0, outputs.size - 1))] = np.nan
    for pair in [(broken, outputs), (outputs, broken)]:
        assert math.isnan(max_abs_error(*pair))
        assert math.isnan(sqnr_db(*pair))
    assert math.isnan(max_rel_error(broken, outputs))


@given(outputs=MATRICES, power=st.integers(-8, 8), shift=st.floats(-10, 10, width=32))
def test_errors_scale_as_they_should_when_both_are_scaled(outputs: np.ndarray, power: int, shift: float) -> None:
    actual, expected = outputs.astype(np.float64) + shift, outputs.astype(np.float64)
    factor = 2.0**power  # exact in floating point
    assert max_abs_error(factor * actual, factor * expected) == factor * max_abs_error(actual, expected)
    if np.any(expected):
        scaled = max_rel_error(factor * actual, factor * expected)
        assert scaled == pytest.approx(max_rel_error(actual, expected), rel=1e-12)
        assert sqnr_db(factor * actual, factor * expected) == pytest.approx(sqnr_db(actual, expected), abs=1e-9)
    assert top1_agreement(factor * actual, expected) == top1_agreement(actual, expected)


def test_equal_infinities_and_nans_are_equal() -> None:
    masked = np.array([[1.0, -np.inf, np.nan], [2.0, -np.inf, np.inf]])
    assert (max_abs_error(masked, masked), max_rel_error(masked, masked)) == (0, 0)
    assert (sqnr_db(masked, masked), centered_sqnr_db(masked, masked)) == (math.inf, math.inf)
    near = np.where(np.isfinite(masked), masked + 0.1, masked)
    assert max_abs_error(near, masked) == pytest.approx(0.1)
    assert sqnr_db(near, masked) == pytest.approx(10 * math.log10(5 / 0.02))
    unmasked = np.where(np.isneginf(masked), 0, masked)
    assert (sqnr_db(unmasked, masked), max_abs_error(unmasked, masked)) == (-math.inf, math.inf)


def test_constant_output_has_no_centered_signal() -> None:
    expected = 10 + np.random.default_rng(0).standard_normal((100, 4))
    constant = np.broadcast_to(expected.mean(axis=0), expected.shape)
    assert sqnr_db(constant, expected) > 19  # which looks sound
    assert centered_sqnr_db(constant, expected) == pytest.approx(0)
    assert centered_sqnr_db(expected + 1, expected) == pytest.approx(0, abs=0.5)
    assert centered_sqnr_db(expected, expected) == math.inf
    assert centered_sqnr_db(np.full((3, 2), 1.1), np.ones((3, 2))) == pytest.approx(20)  # does not depend on the sample


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2)])
def test_output_that_predicts_no_class_always_agrees(shape: tuple[int, ...]) -> None:
    outputs = np.random.default_rng(0).standard_normal(shape)
    assert top1_agreement(-outputs, outputs) == 1


def test_rel_error_uses_the_tensors_scale_when_one_logit_is_near_zero() -> None:
    assert max_rel_error(np.array([100.0, 2e-6]), np.array([100.0, 1e-6])) == pytest.approx(1e-8)
    assert max_rel_error(np.array([0.5]), np.array([0.0])) == 0.5


@pytest.mark.parametrize(
    ("actual", "expected", "decibels"),
    [
        ([0.9], [1.0], 20.0),
        ([1.0], [0.0], -math.inf),
        ([np.inf], [1.0], -math.inf),
        ([1e200, 0.0], [1e-200, 1.0], -math.inf),
    ],
)
def test_sqnr_is_the_textbook_value_when_computed_by_hand(
    actual: list[float], expected: list[float], decibels: float
) -> None:
    with np.errstate(over="ignore"):
        assert sqnr_db(np.array(actual), np.array(expected)) == pytest.approx(decibels)


def test_top1_agreement_counts_samples_when_some_differ() -> None:
    actual = np.array([[1, 2], [2, 1], [0, 3], [5, 4]], np.float32)
    expected = np.array([[0, 9], [0, 9], [0, 9], [9, 0]], np.float32)
    assert top1_agreement(actual, expected) == 0.75


def test_column_of_rounded_probabilities_has_two_classes_and_one_of_scores_does_not() -> None:
    rounded = np.array([[-0.004], [0.75], [1.004]], np.float32)
    np.testing.assert_array_equal(scores_per_class(rounded), [[1, 0], [0.25, 0.75], [0, 1]])
    scores = np.array([[-1.5], [0.3]], np.float32)
    assert scores_per_class(scores) is scores


def test_classes_that_a_model_returns_as_minus_one_and_one_are_looked_up() -> None:
    assert predicted_classes(np.array([-1, 1, 0]), ("-1", "1")).tolist() == [0, 1, -1]
    assert predicted_classes(np.array([-1, 1, 0])).tolist() == [-1, 1, 0]
