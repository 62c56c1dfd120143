"""Images as they are, where the model normalizes them itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_models import HEIGHT, WIDTH, how, image_model, images

from gauntlet.core.signature import Signature
from gauntlet.images.preprocessing import fitting_inputs, preprocess, preprocess_batch, restored_pixels


def test_image_of_the_right_size_is_the_input() -> None:
    [pixels] = images(1)
    found = preprocess(pixels, how(in_graph=True), "NHWC")
    assert found.dtype == np.uint8
    assert np.array_equal(found, pixels)


@pytest.mark.parametrize("resize", ["stretch", "crop", "letterbox"])
def test_resized_image_is_that_of_a_normalized_input_rounded(resize: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (31, 17, 3), np.uint8)
    plain = how(resize=resize, padding=7)
    expected = restored_pixels(preprocess(pixels, plain, "NCHW")[None], plain, "NCHW")[0]
    found = preprocess(pixels, plain.replace(in_graph=True), "NHWC")
    assert found.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(found.astype(int) - expected).max() <= 1  # ties may be rounded either way
    assert (found == expected).mean() > 0.98


@given(level=st.integers(0, 16))
def test_scale_of_the_training_data_becomes_levels_of_255(level: int) -> None:
    pixels = np.full((HEIGHT, WIDTH), level, np.float64)  # scikit-learn's digits have levels from 0 to 16
    found = preprocess(pixels, how(scale=1 / 16, in_graph=True), "NHWC")
    assert found.shape == (HEIGHT, WIDTH, 3)
    assert np.all(found == round(255 * level / 16))


def test_images_fit_any_model_of_their_size_and_other_arrays_stay() -> None:
    for layout in ("NCHW", "NHWC"):
        signature = Signature.read(image_model(how(channel_order="BGR"), layout))
        pixels = images(2)
        found = fitting_inputs({"picture": pixels}, signature)
        assert np.array_equal(found["x"], preprocess_batch(pixels, how(channel_order="BGR"), layout))  # type: ignore[arg-type]
        for other in ({"x": found["x"]}, {"image": pixels[:, 1:]}, {"a": pixels, "b": pixels}):
            assert fitting_inputs(other, signature) is other


cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_normalization_is_that_of_opencv(order: str) -> None:
    """`blobFromImage` swaps the channels, subtracts a mean in levels, and multiplies with one factor."""
    [pixels] = images(1)
    mean, deviation = (0.48, 0.45, 0.41), 0.25
    levels = [255 * value for value in mean]
    blob = cv2.dnn.blobFromImage(pixels, 1 / 255 / deviation, mean=levels, swapRB=order == "BGR")
    plain = how(mean=mean, std=(deviation,) * 3, channel_order=order)
    np.testing.assert_allclose(preprocess(pixels, plain)[None], blob, atol=2e-6)


def test_enlarging_is_that_of_opencv() -> None:
    """Without antialiasing: OpenCV has none in INTER_LINEAR, so that reduced images differ."""
    small = np.random.default_rng(2).integers(0, 256, (5, 4, 3), np.uint8)
    found = preprocess(small, how(in_graph=True), "NHWC").astype(int)
    expected = cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
    assert np.abs(found - expected).max() <= 1
