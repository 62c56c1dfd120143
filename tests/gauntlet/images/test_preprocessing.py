"""From a picture to an input: by hand, and the same for grey and colour."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gauntlet.core.errors import StageError
from gauntlet.core.signature import HogFeatures, Preprocessing
from gauntlet.images.preprocessing import preprocess, preprocess_batch


def how(size: int = 4, scale: float = 1 / 255, mean: tuple[float, ...] = (0.5,) * 3, **more: object) -> Preprocessing:
    return Preprocessing(height=size, width=size, scale=scale, mean=mean, std=tuple(0.25 for _ in mean), **more)


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def test_preprocess_scales_and_normalizes_when_no_resizing_is_needed() -> None:
    pixels = picture(4, 4)
    result = preprocess(pixels, how(mean=(0.1, 0.2, 0.3)))
    expected = (pixels.transpose(2, 0, 1) / 255 - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.25
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous


def test_preprocess_repeats_the_channel_when_the_picture_is_grey() -> None:
    grey = np.random.default_rng(0).integers(0, 17, (8, 8)).astype(np.float64)
    result = preprocess(grey, how(size=16, scale=1 / 16))
    assert result.shape == (3, 16, 16)
    assert np.array_equal(result[0], result[1])
    assert np.array_equal(result, preprocess(grey[:, :, None], how(size=16, scale=1 / 16)))


@given(value=st.integers(0, 255), size=st.integers(1, 40), height=st.integers(1, 20), width=st.integers(1, 20))
def test_preprocess_keeps_the_value_when_the_picture_has_one(value: int, size: int, height: int, width: int) -> None:
    for resize in ("stretch", "crop"):
        result = preprocess(np.full((height, width), value, np.uint8), how(size=size, resize=resize))
        assert result.shape == (3, size, size)
        np.testing.assert_allclose(result, (value / 255 - 0.5) / 0.25, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(5, 9), (9, 5)])
def test_preprocess_keeps_height_and_width_apart_when_they_differ(height: int, width: int) -> None:
    shape = Preprocessing(height=height, width=width, scale=1, mean=(0.0,), std=(1.0,))
    rows = np.repeat(np.arange(height, dtype=np.float32)[:, None], width, axis=1)
    assert np.array_equal(preprocess(rows, shape)[0], rows)


@pytest.mark.parametrize(("height", "width"), [(10, 30), (30, 10)])
def test_preprocess_looks_at_the_middle_when_it_crops(height: int, width: int) -> None:
    pixels = picture(height, width)
    middle = pixels[:, 10:20] if width > height else pixels[10:20]
    assert np.array_equal(preprocess(pixels, how(10, resize="crop")), preprocess(middle, how(10)))
    assert np.array_equal(preprocess(pixels, how(5, resize="crop")), preprocess(middle, how(5)))


def test_preprocess_resizes_as_pillow_does_when_the_picture_is_large() -> None:
    pixels = picture(37, 53)
    result = preprocess(pixels, how(16, mean=(0.0,) * 3)) * 0.25 * 255
    whole = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR))
    assert np.abs(result.transpose(1, 2, 0) - whole).max() <= 1  # Pillow rounds to whole numbers, twice


def test_preprocess_puts_the_channels_last_when_the_layout_says_so() -> None:
    pixels = picture(9, 7)
    last = preprocess(pixels, how(6), "NHWC")
    assert last.shape == (6, 6, 3)
    assert np.array_equal(last.transpose(2, 0, 1), preprocess(pixels, how(6), "NCHW"))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_many_pictures_are_the_same_inputs_as_one_by_one_when_they_have_the_right_size(layout: str) -> None:
    pixels = np.stack([picture(4, 4), picture(5, 4)[1:]])
    one_by_one = np.stack([preprocess(image, how(), layout) for image in pixels])
    assert np.array_equal(preprocess_batch(pixels, how(), layout), one_by_one)


def test_preprocess_is_refused_when_the_channels_do_not_fit() -> None:
    with pytest.raises(StageError, match="the image has 4 channels, the model takes 3"):
        preprocess(picture(4, 4, 4), how())
    with pytest.raises(StageError, match="the image has 3 channels, the model takes 1"):
        preprocess(picture(4, 4), how(mean=(0.0,)))


@pytest.mark.parametrize(
    "hog",
    [
        HogFeatures(),
        HogFeatures(orientations=6, pixels_per_cell=8),
        HogFeatures(cells_per_block=1),
        HogFeatures(pixels_per_cell=5),
    ],
)
def test_preprocess_is_scikit_image_when_it_makes_histograms(hog: HogFeatures) -> None:
    from skimage.feature import hog as reference

    grey = np.random.default_rng(0).integers(0, 17, (32, 32)).astype(np.float64)
    shape = Preprocessing(height=32, width=32, scale=1 / 16, mean=(0.0,), std=(1.0,), hog=hog)
    expected = reference(
        (grey / 16).astype(np.float32),
        orientations=hog.orientations,
        pixels_per_cell=(hog.pixels_per_cell,) * 2,
        cells_per_block=(hog.cells_per_block,) * 2,
    )
    result = preprocess(grey, shape, "none")
    assert result.dtype == np.float32
    assert np.array_equal(result, expected)
