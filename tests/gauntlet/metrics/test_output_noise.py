"""The noise of an output is seen in whichever column it is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gauntlet.metrics.output_noise import output_noise, sample_noise_db

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
