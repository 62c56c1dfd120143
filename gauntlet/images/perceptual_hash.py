"""Fingerprints by which an image is recognized after it was resized, recompressed or made brighter."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from gauntlet.core.arrays import Array

SIDE = 32
LOW = 8
THUMBNAIL = 16
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Of red, green and blue, as Pillow converts to gray (ITU-R BT.601)."""


class Fingerprint(NamedTuple):
    """A hash to find similar images, and a thumbnail to compare them."""

    hash: int
    thumbnail: bytes


def fingerprint(pixels: Array) -> Fingerprint:
    """Return the fingerprint of one image, shape (height, width, channels) or (height, width), of any range of values.

    The hash is pHash (Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010): the image in
    gray at 32 x 32, of its cosine transform the 8 x 8 lowest frequencies, one bit each for above the median; the first,
    the brightness, is left out. The thumbnail has 16 x 16 bytes from the darkest pixel, 0, to the brightest, 255.
    """
    from scipy.fft import dctn

    small = np.asarray(_gray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float32)
    low = dctn(small, norm="ortho")[:LOW, :LOW].ravel()[1:]
    bits = np.packbits(np.append(False, low > np.median(low)))
    step = SIDE // THUMBNAIL
    thumbnail = small.reshape(THUMBNAIL, step, THUMBNAIL, step).mean(axis=(1, 3))
    darkest, brightest = float(thumbnail.min()), float(thumbnail.max())
    scaled = (thumbnail - darkest) * (255 / (brightest - darkest) if brightest > darkest else 0)
    return Fingerprint(int.from_bytes(bits.tobytes()), np.round(scaled).astype(np.uint8).tobytes())


def _gray(pixels: Array) -> Image.Image:
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    if pixels.dtype == np.uint8:
        return Image.fromarray(pixels).convert("L")
    values = np.nan_to_num(pixels.astype(np.float32), posinf=0.0, neginf=0.0)
    if values.ndim == 3:
        values = values @ LUMA if values.shape[2] == 3 else values.mean(axis=2)
    return Image.fromarray(values)


def hashes(fingerprints: tuple[Fingerprint, ...]) -> npt.NDArray[np.uint64]:
    """Return the hashes of some images, shape (n,)."""
    return np.array([each.hash for each in fingerprints], np.uint64)


def normalized_thumbnails(fingerprints: tuple[Fingerprint, ...]) -> npt.NDArray[np.float32]:
    """Return the thumbnails, shape (n, 256), each without its mean and of length 1; all zeros for an even image.

    The product of two is their correlation.
    """
    joined = b"".join(each.thumbnail for each in fingerprints)
    rows = np.frombuffer(joined, np.uint8).reshape(len(fingerprints), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0))
