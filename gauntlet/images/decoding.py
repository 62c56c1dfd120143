"""Decode image files; the data stage and training share this function."""

import io
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from gauntlet.core.errors import StageError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Pillow's other formats are rare as model inputs or, like EPS, start another program."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
"""Of files in these formats."""

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Modes with at most 8 bits per channel: Pillow would clip others instead of scaling them."""

MAX_PIXELS = 89_478_485
"""Pillow's own limit against decompression bombs."""
MAX_SIDE = 65_535
"""Of a JPEG. To resize an image takes the longer the longer its side is, whatever its pixels."""


def decode_image(content: bytes, channels: int, max_pixels: int = MAX_PIXELS) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image file, shape (height, width, channels): 1 channel for grayscale, 3 for RGB.

    The image is rotated as its EXIF data says; its transparency is ignored.

    Raise StageError with the reason, unless it is a complete still image with 8 bits per channel.
    """
    if not content:
        raise StageError("the file is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _require_still(image, max_pixels)
            return pixels_of_image(image, channels)
    except StageError:
        raise
    except UnidentifiedImageError as error:
        raise StageError(f"not an image, or a damaged one (supported formats: {', '.join(FORMATS)})") from error
    except Exception as error:  # Pillow's readers raise many types
        raise StageError(f"damaged: {error or type(error).__name__}") from error


def pixels_of_image(image: Image.Image, channels: int) -> npt.NDArray[np.uint8]:
    """Return the pixels of Pillow's image as `decode_image` does; StageError for more than 8 bits per channel."""
    if image.mode not in MODES:
        raise StageError(f"pixel mode {image.mode}; expected at most 8 bits per channel")
    if any(";16" in str(tile[3]) for tile in getattr(image, "tile", ())):  # Pillow would keep each value's high byte
        raise StageError("16 bits per channel; expected at most 8")
    upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    return np.asarray(upright).reshape(upright.height, upright.width, channels)


def _require_still(image: Image.Image, max_pixels: int) -> None:
    if max(image.size) > MAX_SIDE:
        raise StageError(f"{image.width}x{image.height} pixels; at most {MAX_SIDE} are allowed on a side")
    if image.width * image.height > max_pixels:
        raise StageError(f"{image.width}x{image.height} pixels; at most {max_pixels} are allowed")
    if image.format == "MPO":  # a phone's JPEG with a second image
        return
    with suppress(EOFError):  # there is no second one; to count a file's 100,000 takes more than a minute
        image.seek(1)
        raise StageError("several frames (animated or several pages); expected one")
