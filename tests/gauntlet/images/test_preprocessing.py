"""From a picture to an input: by hand, and the same for grey and colour."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from gauntlet.core.errors import StageError
from gauntlet.core.signature import HogFeatures, Preprocessing
from gauntlet.images.preprocessing import preprocess, preprocess_batch, restored_pixels, source_region


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


def smooth(height: int, width: int) -> np.ndarray:
    """An image without overshoot at its limits, on which Pillow's rounding is all that differs."""
    small = Image.fromarray(np.random.default_rng(1).integers(60, 196, (5, 7, 3), np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


KINDS = ("nearest", "bilinear", "bicubic", "lanczos")


@pytest.mark.parametrize("interpolation", KINDS)
@pytest.mark.parametrize(("height", "width"), [(37, 53), (9, 11), (64, 16)])
def test_preprocess_interpolates_as_pillow_does(interpolation: str, height: int, width: int) -> None:
    pixels = smooth(height, width)
    result = preprocess(pixels, how(16, mean=(0.0,) * 3, interpolation=interpolation)) * 0.25 * 255
    whole = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling[interpolation.upper()]))
    # Pillow rounds to whole numbers twice, and kernels with negative weights enlarge the first error.
    assert np.abs(result.transpose(1, 2, 0) - whole).max() <= 1.5


def test_kernels_that_overshoot_stay_in_the_range_of_pixels() -> None:
    edge = np.zeros((20, 20, 3), np.uint8)
    edge[:, 10:] = 255
    for kind in ("bicubic", "lanczos"):
        result = preprocess(edge, how(64, mean=(0.0,) * 3, interpolation=kind)) * 0.25
        assert (result.min(), result.max()) == (0, 1)


@pytest.mark.parametrize(("height", "width"), [(10, 40), (40, 10), (3, 90), (16, 16), (150, 50)])
def test_letterbox_is_that_of_pillow(height: int, width: int) -> None:
    pixels = smooth(height, width)
    result = preprocess(pixels, how(16, mean=(0.0,) * 3, resize="letterbox", padding=7)) * 0.25 * 255
    whole = ImageOps.pad(Image.fromarray(pixels), (16, 16), Image.Resampling.BILINEAR, (7, 7, 7), (0.49, 0.49))
    assert np.abs(result.transpose(1, 2, 0) - np.asarray(whole)).max() <= 1


def test_region_of_a_letterbox_reaches_beyond_the_image() -> None:
    assert source_region(20, 40, how(8, resize="letterbox")) == (0, -10, 40, 40)
    assert source_region(40, 20, how(8, resize="letterbox")) == (-10, 0, 40, 40)
    assert source_region(20, 40, how(8, resize="crop")) == (10, 0, 20, 20)
    assert source_region(20, 40, how(8)) == (0, 0, 40, 20)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_channels_are_in_the_order_that_the_model_takes(layout: str) -> None:
    pixels = picture(6, 5)
    bgr = how(4, mean=(0.1, 0.2, 0.3), channel_order="BGR")
    assert np.array_equal(preprocess(pixels, bgr, layout), preprocess(pixels[..., ::-1], how(4, mean=bgr.mean), layout))
    small = picture(4, 4)[None]
    assert np.array_equal(preprocess_batch(small, bgr, layout)[0], preprocess(small[0], bgr, layout))
    assert np.array_equal(restored_pixels(preprocess_batch(small, bgr, layout), bgr, layout), small)


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
