"""From the bytes of a picture file to its pixels. The data stage and training both call this."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from gauntlet.core.errors import StageError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Whatever else Pillow reads is either no picture for a model or, like EPS, starts another program."""

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Those with at most 8 bits a channel: others would be cut off, not scaled, when they are converted."""

MAX_PIXELS = 89_478_485
"""Pillow's own limit, above which a small file may be made to fill the memory."""


def decode_image(content: bytes, channels: int) -> npt.NDArray[np.uint8]:
    """Return the pixels of a picture, turned upright as its EXIF data asks.

    Transparency is ignored, as image classifiers usually do.

    Args:
        content: the file.
        channels: 1 for grey, 3 for red, green and blue.

    Returns:
        Shape (height, width, channels).

    Raises:
        StageError: with the reason, when it is no whole, still picture of 8 bits a channel.
    """
    if not content:
        raise StageError("the file is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            reason = _unfit(image)
            if reason is None:
                return _pixels(image, channels)
    except UnidentifiedImageError as error:
        raise StageError(f"no picture, or a damaged one (formats that are read: {', '.join(FORMATS)})") from error
    except Exception as error:  # Pillow's readers raise whatever their format's code meets
        raise StageError(f"damaged: {error or type(error).__name__}") from error
    raise StageError(reason)


def _unfit(image: Image.Image) -> str | None:
    """Return why the picture is not to be used, as far as its head tells."""
    if image.width * image.height > MAX_PIXELS:
        return f"{image.width}x{image.height} pixels; {MAX_PIXELS} are allowed"
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:  # MPO: a telephone's JPEG with a second picture
        return f"{getattr(image, 'n_frames', 0)} frames (animated, or several pages); one is wanted"
    if image.mode not in MODES:
        return f"pixels of mode {image.mode}; 8 bits a channel are wanted"
    return None


def _pixels(image: Image.Image, channels: int) -> npt.NDArray[np.uint8]:
    image.load()
    upright = ImageOps.exif_transpose(image)
    plain = upright.convert("L" if channels == 1 else "RGB")
    return np.asarray(plain).reshape(plain.height, plain.width, channels)
