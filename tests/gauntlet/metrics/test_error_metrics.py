"""The arithmetic of comparison: errors of values, and the noise of an output in whichever column it is."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gauntlet.metrics.error_metrics import (
    centered_sqnr_db,
    max_abs_error,
    max_normalized_error,
    max_rel_error,
    predicted_classes,
    scores_per_class,
    sqnr_db,
    top1_agreement,
)
from gauntlet.metrics.output_noise import output_noise, sample_noise_db

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


def test_scores_of_no_class_predict_nothing() -> None:
    assert predicted_classes(np.empty((3, 0), np.float32)) is None


RNG = np.random.default_rng(0)
ARRAYS = arrays(np.float32, array_shapes(min_dims=1, max_dims=4, max_side=5), elements=st.floats(-1e6, 1e6, width=32))
BOXES = 320 * RNG.random((40, 4, 60))
SCORES = RNG.random((40, 8, 60)) ** 8
DETECTIONS = np.concatenate([BOXES, SCORES], axis=1).astype(np.float32)


@given(outputs=ARRAYS)
def test_equal_outputs_have_no_noise_and_a_nan_is_never_good(outputs: np.ndarray) -> None:
    assert output_noise(outputs, outputs).sqnr_db == math.inf
    broken = outputs.copy()
    broken.flat[0] = np.nan
    assert math.isnan(output_noise(broken, outputs).sqnr_db)


@given(outputs=ARRAYS, power=st.integers(-8, 8))
def test_noise_depends_on_no_unit(outputs: np.ndarray, power: int) -> None:
    assume(np.abs(outputs).max() > 300)  # numbers up to 1 may all be shares, which have one unit
    actual, factor = outputs.astype(np.float64)[::-1].copy(), 2.0**power
    scaled = output_noise(factor * actual, factor * outputs.astype(np.float64)).sqnr_db
    assert scaled == pytest.approx(output_noise(actual, outputs).sqnr_db, abs=1e-6)


@pytest.mark.parametrize("column", range(12))
def test_every_single_column_that_is_lost_is_seen(column: int) -> None:
    broken = DETECTIONS.copy()
    broken[:, column] = DETECTIONS[:, column].mean()
    noise = output_noise(broken, DETECTIONS)
    assert noise.sqnr_db < 1
    assert noise.place in (f"[:, {column}]", "")


PLACES = np.concatenate([1000 * RNG.random((200, 17, 2)), RNG.random((200, 17, 1))], axis=2)
SALES = np.stack([RNG.normal(3e5, 1e5, 200), RNG.normal(3, 1, 200)], axis=1)


@pytest.mark.parametrize("outputs", [PLACES, PLACES.reshape(100, 2, 17, 3), SALES], ids=["one", "people", "prices"])
def test_column_in_another_unit_is_judged_by_itself(outputs: np.ndarray) -> None:
    lost, close = outputs.astype(np.float32), outputs.astype(np.float32)
    lost[..., -1], close[..., -1] = lost[..., -1].mean(), 1.001 * close[..., -1]
    assert output_noise(lost, outputs).sqnr_db < 1
    assert np.median(sample_noise_db(lost, outputs)) < 10
    assert max_normalized_error(lost, outputs) > 0.4
    assert max_normalized_error(close, outputs) == pytest.approx(0.001, abs=0.001)
    assert output_noise(close, outputs).sqnr_db > 40
    shares = outputs.astype(np.float32) / outputs.max()
    lost[..., :-1], lost[..., -1] = shares[..., :-1], shares[..., -1].mean()
    assert output_noise(lost, shares).sqnr_db > 30  # a class that is hardly ever probable


@pytest.mark.parametrize("spread", [0.0, -1.0], ids=["constant", "inverted"])
def test_channel_of_a_map_in_another_unit_is_judged_by_itself(spread: float) -> None:
    """A map of depths in millimetres has a channel of its confidence, from 0 to 1."""
    maps = np.stack([RNG.normal(5000, 2000, (40, 12, 16)), RNG.random((40, 12, 16))], axis=1)
    lost, close = maps.copy(), maps.copy()
    lost[:, 1], close[:, 1] = 0.5 + spread * (maps[:, 1] - 0.5), 1.001 * maps[:, 1]
    assert output_noise(lost, maps).sqnr_db < 1
    assert max_normalized_error(lost, maps) > 0.4
    assert output_noise(close, maps).sqnr_db > 40
    assert max_normalized_error(close, maps) == pytest.approx(0.001, abs=0.001)


@pytest.mark.parametrize("column", range(6))
def test_each_of_few_columns_whose_units_are_graded_is_judged(column: int) -> None:
    """No gap of 50 lies between a price, an area, a rent, an age, rooms and a rating."""
    values = np.array([3000, 2000, 1500, 50, 20, 0.5]) * (3 + RNG.standard_normal((300, 6)))
    lost, close = values.copy(), 1.001 * values
    lost[:, column] = values[:, column].mean()
    assert output_noise(lost, values).sqnr_db < 1
    assert max_normalized_error(lost, values) > 0.1
    assert output_noise(close, values).sqnr_db > 40


def test_constant_output_has_no_signal_however_close_to_the_mean_it_is() -> None:
    values = 100 + RNG.standard_normal((200, 3))
    assert output_noise(np.broadcast_to(values.mean(0), values.shape), values).sqnr_db == pytest.approx(0, abs=0.1)
    half = output_noise(values + 0.5 * RNG.standard_normal(values.shape), values)
    assert half.sqnr_db == pytest.approx(6, abs=1)


def test_column_that_hardly_varies_is_judged_by_its_level() -> None:
    values = np.concatenate([RNG.standard_normal((300, 8)), np.full((300, 1), 5.0)], axis=1)
    near, far = values.copy(), values.copy()
    near[:, 8] += 0.01 * RNG.standard_normal(300)
    far[:, 8] = 0
    assert output_noise(near, values).sqnr_db > 40
    assert output_noise(far, values).sqnr_db < 0.1


def test_few_noisy_columns_among_very_many_are_allowed_unless_they_carry_the_output() -> None:
    values = RNG.standard_normal((50, 1000))
    broken = values.copy()
    broken[:, :10] *= 0.4
    assert output_noise(broken, values).sqnr_db > 15
    broken[:, :30] *= 0.4
    assert output_noise(broken, values).sqnr_db < 6
    values[:, 0] *= 1000
    broken = values.copy()
    broken[:, 0] = 0
    assert output_noise(broken, values).sqnr_db < 1


@pytest.mark.parametrize("scale", [0.0, -0.2, 3.0])
def test_single_column_of_a_thousand_that_is_no_better_than_a_constant_counts_alone(scale: float) -> None:
    values = RNG.standard_normal((50, 1000))
    broken = values.copy()
    broken[:, 707] *= scale
    noise = output_noise(broken, values)
    assert (noise.place, noise.sqnr_db <= 0) == ("[:, 707]", True)


def test_classes_that_no_sample_shows_are_measured_by_those_that_are_shown() -> None:
    """Most characters of a large alphabet are never probable in a line of text, and most places are blank."""
    shares, places = 1e-6 * RNG.random((60, 2000)), np.arange(60)
    shares[places, np.where(places % 2, 0, places % 20)] = 0.99
    near, swapped = shares.copy(), shares.copy()
    near[:, 20:] += 1e-3 * RNG.random((60, 1980))
    swapped[:, [6, 8]] = shares[:, [8, 6]]
    assert output_noise(near, shares).sqnr_db > 20
    assert output_noise(near + 0.1 * (shares < 0.5), shares).sqnr_db < 6
    assert output_noise(swapped, shares).sqnr_db <= 0


def test_one_sample_is_compared_with_its_level() -> None:
    one = np.full((1, 4), 2.0)
    assert output_noise(one + 0.2, one).sqnr_db == pytest.approx(20)


def test_equal_infinities_are_no_noise() -> None:
    masked = np.array([[1.0, -np.inf], [2.0, -np.inf]])
    assert output_noise(masked, masked).sqnr_db == math.inf
    assert output_noise(np.where(np.isinf(masked), 0, masked), masked).sqnr_db == -math.inf


def test_noise_of_a_sample_is_its_own() -> None:
    broken = DETECTIONS.copy()
    broken[7, 6] = DETECTIONS[8, 6]
    ratios = sample_noise_db(broken, DETECTIONS)
    assert ratios[7] < 6
    assert (np.delete(ratios, 7) == math.inf).all()
