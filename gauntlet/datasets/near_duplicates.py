"""Images of the test split that are almost the same as one of another split: copies that a digest does not find."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.images.perceptual_hash import Fingerprint, hashes, normalized_thumbnails

MAX_BITS = 10
"""Hashes of copies differ in no more of their 63 bits."""
MIN_CORRELATION = 0.995
"""Thumbnails of copies correlate at least so much; similar hashes alone are too common among plain images."""
CLOSEST = 16
"""By hash; only these are compared by thumbnail."""
CHUNK_PAIRS = 4_000_000


class NearDuplicate(Frozen):
    """A test image and the image of another split that it resembles, by file or by `split[index]`."""

    test: str
    other: str
    correlation: Number = Field(description="of both images as 16 x 16 gray pixels")


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


def near_duplicates_check(pairs: Sequence[NearDuplicate], test_images: int, limit: int | None) -> Check:
    """Return the check on the number of pairs; without a limit, any pair is a warning."""
    examples = "; ".join(f"{pair.test} resembles {pair.other}" for pair in pairs[:3])
    return Check.of(
        "data.max_near_duplicates",
        len(pairs),
        "<=",
        limit or 0,
        f"{100 * len(pairs) / test_images:.1f} % of the test images; {examples}" if pairs else "",
        "remove the copies from all splits but one, or keep images of one origin in one split",
        unit="images",
        severity="warning" if limit is None else "error",
    )
