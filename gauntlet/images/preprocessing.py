"""Turn an image into a model's input as the signature says; every dataset uses this, so they cannot differ."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.signature import HogFeatures, Preprocessing

Layout = Literal["NCHW", "NHWC", "none"]


def preprocess(image: Array, how: Preprocessing, layout: Layout = "NCHW") -> npt.NDArray[np.float32]:
    """Turn one image, shape (height, width) or (height, width, channels), into one input.

    A grayscale image is repeated in every channel. Resizing is bilinear with antialiasing, on floats to avoid rounding.

    Returns:
        Shape (channels, h, w), in layout NHWC (h, w, channels), with `how.hog` (features,).

    Raise StageError if the image has other channels than the model takes.
    """
    pixels, channels = np.atleast_3d(image).astype(np.float32), len(how.mean)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, channels, axis=2)
    if pixels.shape[2] != channels:
        raise StageError(f"the image has {pixels.shape[2]} channels, the model takes {channels}; convert it first")
    if how.resize == "crop":
        pixels = _center_crop(pixels, how)
    size = (how.width, how.height)
    resized = np.stack(
        [
            np.asarray(Image.fromarray(plane).resize(size, Image.Resampling.BILINEAR))
            for plane in np.moveaxis(pixels, 2, 0)
        ],
        axis=2,
    )
    if how.hog is not None:
        return hog_features(_normalized(resized, how)[:, :, 0], how.hog)
    return preprocess_batch(resized[None], how, layout).squeeze(0)


def preprocess_batch(images: Array, how: Preprocessing, layout: Layout) -> npt.NDArray[np.float32]:
    """Turn images of the right size, shape (k, height, width, channels), into inputs."""
    values = _normalized(images, how)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if layout == "NCHW" else values)


def restored_pixels(inputs: Array, how: Preprocessing, layout: Layout) -> npt.NDArray[np.uint8]:
    """Return the images that inputs, shape (k, ...), were before normalization, shape (k, height, width, channels)."""
    values = np.moveaxis(inputs, 1, 3) if layout == "NCHW" else inputs
    values = values * np.asarray(how.std, np.float32) + np.asarray(how.mean, np.float32)
    return np.nan_to_num(np.clip(255 * values, 0, 255)).round().astype(np.uint8)


def hog_features(image: Array, how: HogFeatures) -> npt.NDArray[np.float32]:
    """Return the HOG features (Dalal and Triggs, 2005) of a grayscale image, shape (height, width), as one vector."""
    from skimage.feature import hog

    cell, block = (how.pixels_per_cell,) * 2, (how.cells_per_block,) * 2
    features = hog(image, how.orientations, pixels_per_cell=cell, cells_per_block=block, block_norm="L2-Hys")
    return np.asarray(features, dtype=np.float32)


def _normalized(images: Array, how: Preprocessing) -> npt.NDArray[np.float32]:
    mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
    return np.asarray((images.astype(np.float32) * np.float32(how.scale) - mean) / std, np.float32)


def source_region(height: int, width: int, how: Preprocessing) -> tuple[int, int, int, int]:
    """Return the part of an image that becomes the input, in pixels: left, top, width and height.

    It is the whole image, or the largest centered part with the aspect ratio of the input, to the nearest pixel.
    """
    if how.resize == "stretch":
        return 0, 0, width, height
    zoom = min(height / how.height, width / how.width)
    high, wide = max(1, round(how.height * zoom)), max(1, round(how.width * zoom))
    return (width - wide) // 2, (height - high) // 2, wide, high


def _center_crop(pixels: npt.NDArray[np.float32], how: Preprocessing) -> npt.NDArray[np.float32]:
    left, top, width, height = source_region(pixels.shape[0], pixels.shape[1], how)
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])
