"""From a picture to a model's input, as the model's signature says; all data sets call this, so they cannot differ."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from gauntlet.core.errors import StageError
from gauntlet.core.signature import HogFeatures, Preprocessing

Layout = Literal["NCHW", "NHWC", "none"]


def preprocess(image: npt.NDArray[np.generic], how: Preprocessing, layout: Layout = "NCHW") -> npt.NDArray[np.float32]:
    """Turn one picture, shape (height, width) or (height, width, channels), into one input.

    A grey picture is repeated in every channel that the model takes. Resizing is bilinear, over all pixels that a new
    one covers, on floats, so that no rounding comes in between.

    Args:
        image: the picture, with raw pixel values.
        how: what the model's signature says.
        layout: of the input; a vector has none.

    Returns:
        Shape (channels, h, w), in layout NHWC (h, w, channels), with `how.hog` (features,).

    Raises:
        StageError: when the picture has other channels than the model takes.
    """
    pixels = np.atleast_3d(image).astype(np.float32)
    channels = len(how.mean)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, channels, axis=2)
    if pixels.shape[2] != channels:
        raise StageError(f"the picture has {pixels.shape[2]} channels, the model takes {channels}; convert it first")
    pixels = _middle(pixels, how) if how.resize == "crop" else pixels
    planes = [
        np.asarray(Image.fromarray(pixels[:, :, c]).resize((how.width, how.height), Image.Resampling.BILINEAR))
        for c in range(channels)
    ]
    resized = np.stack(planes, axis=2)
    if how.hog is not None:
        return hog_features(_normalised(resized, how)[:, :, 0], how.hog)
    one: npt.NDArray[np.float32] = preprocess_batch(resized[None], how, layout)[0]
    return one


def preprocess_batch(pictures: npt.NDArray[np.generic], how: Preprocessing, layout: Layout) -> npt.NDArray[np.float32]:
    """Turn pictures of the right size, shape (k, height, width, channels), into inputs."""
    values = _normalised(pictures, how)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if layout == "NCHW" else values)


def hog_features(picture: npt.NDArray[np.generic], how: HogFeatures) -> npt.NDArray[np.float32]:
    """Return the histograms of oriented gradients of a grey picture, shape (height, width), as one vector.

    Blocks are normalised with clipping (L2-Hys), as Dalal and Triggs do.
    """
    from skimage.feature import hog

    found = hog(
        picture,
        orientations=how.orientations,
        pixels_per_cell=(how.pixels_per_cell, how.pixels_per_cell),
        cells_per_block=(how.cells_per_block, how.cells_per_block),
        block_norm="L2-Hys",
    )
    return np.asarray(found, dtype=np.float32)


def _normalised(pictures: npt.NDArray[np.generic], how: Preprocessing) -> npt.NDArray[np.float32]:
    mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
    return np.asarray((pictures.astype(np.float32) * np.float32(how.scale) - mean) / std, np.float32)


def _middle(pixels: npt.NDArray[np.float32], how: Preprocessing) -> npt.NDArray[np.float32]:
    """Return the largest part of a picture, in its middle, that has the shape of the input, to the nearest pixel."""
    zoom = min(pixels.shape[0] / how.height, pixels.shape[1] / how.width)
    height, width = max(1, round(how.height * zoom)), max(1, round(how.width * zoom))
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])
