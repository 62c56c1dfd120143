"""Outputs whose length depends on the sample become arrays, and keep their lengths."""

import numpy as np
import pytest

from gauntlet.core.ragged import comparable, is_ragged, joined_samples, paired, without_padding


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.int8, np.uint8, np.bool_, np.str_])
def test_samples_of_different_lengths_are_joined_and_read_again(dtype: type) -> None:
    samples = [np.arange(n * 2).reshape(n, 2).astype(dtype) for n in (3, 0, 1)]
    whole = joined_samples([sample[None] for sample in samples])
    assert (whole.shape, is_ragged(whole)) == ((3, 3, 2), True)
    for sample, padded in zip(samples, whole, strict=True):
        assert np.array_equal(without_padding(padded).reshape(sample.shape), sample)


def test_samples_of_one_length_are_joined_as_they_are() -> None:
    parts = [np.zeros((2, 3), bool), np.ones((1, 3), bool)]
    assert (joined_samples(parts).dtype, is_ragged(joined_samples(parts))) == (np.bool_, False)


def test_part_in_which_every_length_is_one_gets_the_axis_that_it_lacks() -> None:
    assert joined_samples([np.ones((2, 3, 4)), np.zeros((1, 4))]).shape == (3, 3, 4)


def test_outputs_of_other_lengths_are_told_sample_by_sample() -> None:
    expected = joined_samples([np.ones((1, n, 4), np.float32) for n in (3, 1, 2)])
    actual = joined_samples([np.ones((1, n, 4), np.float32) for n in (3, 5, 2)])
    one, other, alike = paired(actual, expected)
    assert (one.shape, other.shape, alike.tolist()) == ((3, 5, 4), (3, 5, 4), [True, False, True])


def test_arrays_of_fixed_but_different_shapes_stay_different() -> None:
    one, other, _ = paired(np.ones((2, 3)), np.ones((2, 1)))
    assert (one.shape, other.shape) == ((2, 3), (2, 1))
    assert not comparable([np.ones((2, 3))], [np.ones((2, 1))])


def test_missing_value_within_a_sample_is_no_padding() -> None:
    holed = np.array([[1, np.nan, 2], [1, 2, 3]])
    assert not is_ragged(holed)
    assert np.isnan(comparable([holed], [np.ones((2, 3))])[0][0]).any()
