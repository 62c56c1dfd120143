"""Turn an image into a model's input as the signature says; every dataset uses this, so they cannot differ."""

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import IMAGE_SCALE, HogFeatures, Layout, Preprocessing, Signature


def preprocess(image: Array, how: Preprocessing, layout: Layout = "NCHW") -> Array:
    """Turn one image, shape (height, width) or (height, width, channels), into one input.

    Color images are RGB. A grayscale image is repeated in every channel. Resizing is Pillow's, on floats to avoid
    rounding; kernels that overshoot are limited to the range of pixels.

    Returns:
        Shape (channels, h, w), in layout NHWC (h, w, channels), float32; with `how.hog` (features,); with
        `how.in_graph` the resized image, uint8, shape (h, w, channels).

    Raise StageError if the image has other channels than the model takes.
    """
    pixels, channels = np.atleast_3d(image), len(how.mean)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, channels, axis=2)
    if pixels.shape[2] != channels:
        raise StageError(f"the image has {pixels.shape[2]} channels, the model takes {channels}; convert it first")
    resized = _fitted(pixels, how)
    if how.hog is not None:
        return hog_features(_normalized(resized, how)[:, :, 0], how.hog)
    return preprocess_batch(resized[None], how, layout).squeeze(0)


def preprocess_batch(images: Array, how: Preprocessing, layout: Layout) -> Array:
    """Turn images of the right size, shape (k, height, width, channels), into inputs."""
    if how.in_graph:
        return _levels(images, how)
    values = _normalized(images, how)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if layout == "NCHW" else values)


def restored_pixels(inputs: Array, how: Preprocessing, layout: Layout) -> npt.NDArray[np.uint8]:
    """Return the images that inputs, shape (k, ...), were before normalization.

    Returns:
        Levels from 0 to 255, grayscale or RGB, shape (k, height, width, channels).
    """
    if how.in_graph:
        return np.asarray(inputs, np.uint8)
    values = np.moveaxis(inputs, 1, 3) if layout == "NCHW" else inputs
    values = values.astype(np.float32) * np.asarray(how.std, np.float32) + np.asarray(how.mean, np.float32)
    values = _reordered(values, how)
    return np.nan_to_num(np.clip(255 * values, 0, 255)).round().astype(np.uint8)


def hog_features(image: Array, how: HogFeatures) -> npt.NDArray[np.float32]:
    """Return the HOG features (Dalal and Triggs, 2005) of a grayscale image, shape (height, width), as one vector."""
    from skimage.feature import hog

    cell, block = (how.pixels_per_cell,) * 2, (how.cells_per_block,) * 2
    features = hog(image, how.orientations, pixels_per_cell=cell, cells_per_block=block, block_norm="L2-Hys")
    return np.asarray(features, dtype=np.float32)


def _levels(images: Array, how: Preprocessing) -> npt.NDArray[np.uint8]:
    """Return images as levels from 0 to 255, rounded; those of image files stay as they are."""
    if not math.isclose(how.scale, IMAGE_SCALE):
        images = 255 * (images.astype(np.float32) * np.float32(how.scale))
    return np.ascontiguousarray(images if images.dtype == np.uint8 else images.clip(0, 255).round().astype(np.uint8))


def _normalized(images: Array, how: Preprocessing) -> npt.NDArray[np.float32]:
    mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
    values = _reordered(images.astype(np.float32), how)
    return np.asarray((values * np.float32(how.scale) - mean) / std, np.float32)


def _reordered(images: npt.NDArray[np.float32], how: Preprocessing) -> npt.NDArray[np.float32]:
    """Return images, channels last, from RGB in the order of the model's channels, or back."""
    return images[..., ::-1] if how.channel_order == "BGR" else images


def source_region(height: int, width: int, how: Preprocessing) -> tuple[float, float, float, float]:
    """Return the region of an image that becomes the input, in its pixels: left, top, width and height.

    It is the whole image; the largest centered part with the aspect ratio of the input, to the nearest pixel; or, with
    a letterbox, the image and the bars beside it.
    """
    if how.resize == "stretch":
        return 0, 0, width, height
    if how.resize == "crop":
        return _centered((how.height, how.width), (height, width))
    left, top, wide, high = _centered((height, width), (how.height, how.width))
    across, down = width / wide, height / high
    return -left * across, -top * down, how.width * across, how.height * down


def _fitted(image: Array, how: Preprocessing) -> Array:
    """Return an image, shape (height, width, channels), at the size of the input; as float32 where it is resized."""
    if image.shape[:2] == (how.height, how.width):
        return image
    pixels, size, own = image.astype(np.float32), (how.height, how.width), (image.shape[0], image.shape[1])
    if how.resize == "letterbox":
        left, top, wide, high = _centered(own, size)
        fitted = np.full((*size, pixels.shape[2]), how.padding / 255 / how.scale, np.float32)
        fitted[top : top + high, left : left + wide] = _resized(pixels, (wide, high), how)
        return fitted
    if how.resize == "crop":
        left, top, wide, high = _centered(size, own)
        pixels = np.ascontiguousarray(pixels[top : top + high, left : left + wide])
    return _resized(pixels, (how.width, how.height), how)


def _resized(pixels: npt.NDArray[np.float32], size: tuple[int, int], how: Preprocessing) -> npt.NDArray[np.float32]:
    kind = Image.Resampling[how.interpolation.upper()]
    planes = [np.asarray(Image.fromarray(plane).resize(size, kind)) for plane in np.moveaxis(pixels, 2, 0)]
    resized = np.stack(planes, axis=2)
    overshoots = how.interpolation in ("bicubic", "lanczos")
    return np.clip(resized, 0, 1 / how.scale) if overshoots else resized


def _centered(inner: tuple[int, int], outer: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, width and height, in a rectangle, of the largest one in it of the aspect ratio of another.

    Both are given by height and width.
    """
    zoom = min(outer[0] / inner[0], outer[1] / inner[1])
    high, wide = (max(1, round(side * zoom)) for side in inner)
    return (outer[1] - wide) // 2, (outer[0] - high) // 2, wide, high


def fitting_inputs(arrays: NamedArrays, signature: Signature) -> NamedArrays:
    """Return inputs that were recorded for a model as those of another one: images, if need be, are normalized.

    Only uint8 images of the right size, shape (n, height, width, channels), are changed: what they are does not depend
    on the model that they were recorded for. All else is returned as it is.
    """
    how, names = signature.preprocessing, [spec.name for spec in signature.inputs]
    if how is None or how.in_graph or how.hog is not None or len(names) != 1 or len(arrays) != 1:
        return arrays
    [images] = arrays.values()
    if images.dtype.name != "uint8" or images.shape[1:] != (how.height, how.width, len(how.mean)):
        return arrays
    return {names[0]: preprocess_batch(images, how.replace(scale=IMAGE_SCALE), signature.layout)}
