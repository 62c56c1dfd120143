"""Data checks that every later number relies on: no leaked samples, no empty classes, only finite values."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gauntlet.core.arrays import Array
from gauntlet.core.report import Check
from gauntlet.datasets.extended_split import ExtendedSplit
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.near_duplicates import NearDuplicate, near_duplicates_check, similar_pairs
from gauntlet.datasets.splits import Dataset, Split, Splits, batches
from gauntlet.images.perceptual_hash import Fingerprint, fingerprint

Layout = Literal["NCHW", "NHWC", "none"]

BATCH = 64
SEARCHED = ("train", "validation", "calibration")
"""Splits in which near-duplicates of test images are looked for, the most important one first."""


@dataclass(frozen=True)
class SplitContents:
    """What identifies each sample of a split; fingerprints of images only."""

    digests: Sequence[bytes]
    non_finite: Sequence[int] = ()
    fingerprints: Sequence[Fingerprint] = ()


@dataclass(frozen=True)
class Audit:
    """The checks, and the pairs of images in two splits that are almost the same."""

    checks: tuple[Check, ...]
    near_duplicates: tuple[NearDuplicate, ...]


def audit_splits(
    dataset: Dataset, samples_per_class: Mapping[str, Mapping[str, int]], max_near_duplicates: int | None = None
) -> Audit:
    """Check that no sample is in two splits (by content, unless they are random), no class is empty, all is finite.

    Test images that are almost the same as an image of another split are warned of, or limited to a number.
    `samples_per_class` are those of each split with classes, by label.
    The samples are read once, in batches; only their digests and fingerprints stay in memory.
    """
    splits, layout = dataset.splits, dataset.signature.layout
    contents = {name: _read(split, layout) for name, split in splits.items()}
    empty = [
        f"{name}: {label}"
        for name, counts in samples_per_class.items()
        for label, count in counts.items()
        if name in ("train", "test") and not count
    ]
    fix = "add images, or remove the class from data.labels"
    checks = (
        *(() if dataset.random else (_leak_check(splits, contents),)),
        _none("empty_classes", len(empty), "classes", ", ".join(empty[:5]), fix),
        _finite_check(contents),
    )
    if not (contents["test"].fingerprints if "test" in contents else ()):
        return Audit(checks, ())
    pairs = _near_duplicates(splits, contents)
    return Audit((*checks, near_duplicates_check(pairs, len(splits["test"]), max_near_duplicates)), pairs)


def _none(name: str, count: int, unit: str, detail: str, remedy: str) -> Check:
    return Check(name=f"data.{name}", value=count, op="==", limit=0, unit=unit, detail=detail, remedy=remedy)


def _leak_check(splits: Splits, contents: Mapping[str, SplitContents]) -> Check:
    places = {name: _first_indices(found.digests) for name, found in contents.items()}
    occurrences = Counter(digest for indices in places.values() for digest in indices)
    leaked = sorted(
        [(name, indices[digest]) for name, indices in places.items() if digest in indices]
        for digest, count in occurrences.items()
        if count > 1
    )
    copies = "; ".join(
        "the same image is " + " and ".join(_sample_name(splits[name], name, index) for name, index in group)
        for group in leaked[:3]
    )
    return _none("leaked_images", len(leaked), "images", copies, "remove the copies from all splits but one")


def _finite_check(contents: Mapping[str, SplitContents]) -> Check:
    invalid = ", ".join(
        f"{name}: {sum(found.non_finite)}, the first in {name}[{np.flatnonzero(found.non_finite)[0]}]"
        for name, found in contents.items()
        if any(found.non_finite)
    )
    total = sum(sum(found.non_finite) for found in contents.values())
    return _none("non_finite_values", total, "values", invalid, "replace NaN and infinity in the inputs")


def _near_duplicates(splits: Splits, contents: Mapping[str, SplitContents]) -> tuple[NearDuplicate, ...]:
    """Return each test image with an almost equal one in the first split that has one; equal ones are left out."""
    found: dict[int, NearDuplicate] = {}
    test = contents["test"]
    for name in SEARCHED:
        other = contents.get(name, SplitContents(()))
        for pair in similar_pairs(test.fingerprints, other.fingerprints):
            if test.digests[pair.image] != other.digests[pair.other] and pair.image not in found:
                found[pair.image] = NearDuplicate(
                    test=_sample_name(splits["test"], "test", pair.image),
                    other=_sample_name(splits[name], name, pair.other),
                    correlation=pair.correlation,
                )
    return tuple(found[index] for index in sorted(found))


def shared_samples(one: Split, other: Split) -> list[tuple[int, int]]:
    """Return the index pairs of the samples that are in both splits, by content (for images in files, the bytes)."""
    first, second = (
        _first_indices(split.digests if isinstance(split, ImageFileSplit) else _read(split).digests)
        for split in (one, other)
    )
    return [(index, second[digest]) for digest, index in first.items() if digest in second]


def _first_indices(digests: Sequence[bytes]) -> dict[bytes, int]:
    indices: dict[bytes, int] = {}
    for index, digest in enumerate(digests):
        indices.setdefault(digest, index)
    return indices


def _read(split: Split, layout: Layout | None = None) -> SplitContents:
    """Return what identifies each sample, and how many of its values are not finite; with a layout, images' prints."""
    if isinstance(split, ImageFileSplit) and split.pixel_digests:  # integers that the data stage has just read
        return SplitContents(split.pixel_digests, (), split.fingerprints)
    if isinstance(split, ExtendedSplit):
        base, extra = _read(split.base, layout), _read(split.extra, layout)
        prints = (*base.fingerprints, *extra.fingerprints)
        counts = (*(base.non_finite or [0] * len(split.base)), *extra.non_finite)
        return SplitContents((*base.digests, *extra.digests), counts, prints)
    digests: list[bytes] = []
    non_finite: list[int] = []
    fingerprints: list[Fingerprint] = []
    for samples in batches(split, BATCH):
        for rows in zip(*samples.values(), strict=True):
            digests.append(hashlib.sha256(b"".join(map(_bytes, rows))).digest())
            non_finite.append(sum(int(np.sum(~np.isfinite(row))) for row in rows if row.dtype.kind == "f"))
            if layout not in (None, "none") and len(rows) == 1 and _is_image(rows[0]):
                fingerprints.append(fingerprint(rows[0].transpose(1, 2, 0) if layout == "NCHW" else rows[0]))
    return SplitContents(digests, non_finite, fingerprints)


def _is_image(row: Array) -> bool:
    return row.ndim == 3 and row.dtype.kind in "fiu" and row.size > 0


def _bytes(row: Array) -> bytes:
    """Return a sample's content; the item size of a string array depends on the longest string beside it."""
    return repr(row.tolist()).encode() if row.dtype.kind == "U" else row.tobytes()


def _sample_name(split: Split, name: str, index: int) -> str:
    if isinstance(split, ExtendedSplit) and index < len(split.base):
        return _sample_name(split.base, name, index)
    return split.files[index] if isinstance(split, ImageFileSplit) else f"{name}[{index}]"
