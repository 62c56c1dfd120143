"""From a picture to an input: by hand, and the same for grey and colour."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.preprocess import preprocess
from tasks.signature import Preprocessing


def how(size: int = 4, scale: float = 1 / 255, mean: tuple[float, ...] = (0.5,) * 3) -> Preprocessing:
    return Preprocessing(height=size, width=size, scale=scale, mean=mean, std=tuple(0.25 for _ in mean))


def test_preprocess_scales_and_normalises_when_no_resizing_is_needed() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8)
    result = preprocess(picture, how(mean=(0.1, 0.2, 0.3)))
    expected = (picture.transpose(2, 0, 1) / 255 - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.25
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous


def test_preprocess_repeats_the_channel_when_the_picture_is_grey() -> None:
    picture = np.random.default_rng(0).integers(0, 17, (8, 8)).astype(np.float64)
    result = preprocess(picture, how(size=16, scale=1 / 16))
    assert result.shape == (3, 16, 16)
    assert np.array_equal(result[0], result[1])
    assert np.array_equal(result, preprocess(picture[:, :, None], how(size=16, scale=1 / 16)))


@given(value=st.integers(0, 255), size=st.integers(1, 40), height=st.integers(1, 20), width=st.integers(1, 20))
def test_preprocess_keeps_the_value_when_the_picture_has_one(value: int, size: int, height: int, width: int) -> None:
    result = preprocess(np.full((height, width), value, np.uint8), how(size=size))
    assert result.shape == (3, size, size)
    np.testing.assert_allclose(result, (value / 255 - 0.5) / 0.25, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(5, 9), (9, 5)])
def test_preprocess_keeps_height_and_width_apart_when_they_differ(height: int, width: int) -> None:
    shape = Preprocessing(height=height, width=width, scale=1, mean=(0.0,), std=(1.0,))
    rows = np.repeat(np.arange(height, dtype=np.float32)[:, None], width, axis=1)
    assert np.array_equal(preprocess(rows, shape)[0], rows)
