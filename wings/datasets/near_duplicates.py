"""Images of the test split that are almost the same as one of another split: copies that a digest does not find."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from gauntlet.core.arrays import Array
from gauntlet.core.report import Check, Severity
from gauntlet.datasets.audit import SplitContents, sample_name
from gauntlet.datasets.splits import NearDuplicate, Splits

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


MAX_BITS = 10
"""Hashes of copies differ in no more of their 63 bits."""
MIN_CORRELATION = 0.995
"""Thumbnails of copies correlate at least so much; similar hashes alone are too common among plain images."""
CLOSEST = 16
"""By hash; only these are compared by thumbnail."""
CHUNK_PAIRS = 4_000_000
SEARCHED = ("train", "validation", "calibration")
"""Splits in which near-duplicates of test images are looked for, the most important one first."""


class SimilarPair(NamedTuple):
    """Indices of an image in one list and of the most similar one in another, and the correlation of both."""

    image: int
    other: int
    correlation: float


def similar_pairs(images: Sequence[Fingerprint], others: Sequence[Fingerprint]) -> list[SimilarPair]:
    """Return each image that is almost the same as one of the others, with the most similar one.

    Time grows with the product of both counts, 10⁹ pairs take some seconds; memory with their sum.
    """
    if not images or not others:
        return []
    pairs: list[SimilarPair] = []
    other_hashes = hashes(tuple(others))
    closest, rows = min(CLOSEST, len(others)), max(1, CHUNK_PAIRS // len(others))
    for start in range(0, len(images), rows):
        chunk = tuple(images[start : start + rows])
        bits = np.bitwise_count(hashes(chunk)[:, None] ^ other_hashes)
        near = np.argpartition(bits, closest - 1, axis=1)[:, :closest]
        distances = np.take_along_axis(bits, near, axis=1)
        for row in np.flatnonzero((distances <= MAX_BITS).any(axis=1)).tolist():
            candidates = near[row, distances[row] <= MAX_BITS]
            thumbnails = normalized_thumbnails((chunk[row], *(others[i] for i in candidates)))
            correlations = thumbnails[1:] @ thumbnails[0]
            best = int(correlations.argmax())
            if correlations[best] >= MIN_CORRELATION:
                pairs.append(SimilarPair(start + row, int(candidates[best]), float(correlations[best])))
    return pairs


def near_duplicates(splits: Splits, contents: Mapping[str, SplitContents]) -> tuple[NearDuplicate, ...]:
    """Return each test image with an almost equal one in the first split that has one; equal ones are left out."""
    duplicates: dict[int, NearDuplicate] = {}
    test = contents["test"]
    for name in SEARCHED:
        other = contents.get(name, SplitContents(()))
        for pair in similar_pairs(test.fingerprints, other.fingerprints):
            if test.digests[pair.image] != other.digests[pair.other] and pair.image not in duplicates:
                duplicates[pair.image] = NearDuplicate(
                    test=sample_name(splits["test"], "test", pair.image),
                    other=sample_name(splits[name], name, pair.other),
                    correlation=pair.correlation,
                )
    return tuple(duplicates[index] for index in sorted(duplicates))


def limit_check(pairs: Sequence[NearDuplicate], test_images: int, limit: int | None) -> Check:
    """Return the check on the number of pairs; without a limit, any pair is a warning."""
    severity: Severity = "warning" if limit is None else "error"
    examples = "; ".join(f"{pair.test} resembles {pair.other}" for pair in pairs[:3])
    detail = f"{100 * len(pairs) / test_images:.1f} % of the test images; {examples}" if pairs else ""
    fix = "remove the copies from all splits but one, or keep images of one origin in one split"
    name, count = "data.max_near_duplicates", len(pairs)
    return Check.of(name, count, "<=", limit or 0, detail, fix, unit="images", severity=severity)
