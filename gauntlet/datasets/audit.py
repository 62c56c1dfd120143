"""Data checks that every later number relies on: no leaked samples, no empty classes, only finite values."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gauntlet.core.arrays import Array
from gauntlet.core.report import Check
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import Dataset, Split, batches

BATCH = 64


def audit_splits(dataset: Dataset, samples_per_class: Mapping[str, Mapping[str, int]]) -> tuple[Check, ...]:
    """Check that no sample is in two splits (by content), no class is empty, and every value is finite.

    `samples_per_class` are those of each split with classes, by label.
    The samples are read once, in batches; only their digests stay in memory.
    """
    splits = dataset.splits
    places: dict[str, dict[bytes, int]] = {}
    non_finite: dict[str, list[int]] = {}
    for name, split in splits.items():
        places[name], non_finite[name] = _read(split)
    occurrences = Counter(digest for indices in places.values() for digest in indices)
    leaked = sorted(
        [(name, indices[digest]) for name, indices in places.items() if digest in indices]
        for digest, count in occurrences.items()
        if count > 1
    )
    empty = [
        f"{name}: {label}"
        for name, counts in samples_per_class.items()
        for label, count in counts.items()
        if name in ("train", "test") and not count
    ]

    def none(name: str, count: int, unit: str, detail: str, remedy: str) -> Check:
        return Check(name=f"data.{name}", value=count, op="==", limit=0, unit=unit, detail=detail, remedy=remedy)

    copies = "; ".join(
        "the same image is " + " and ".join(_sample_name(splits[name], name, index) for name, index in group)
        for group in leaked[:3]
    )
    invalid = ", ".join(
        f"{name}: {sum(counts)}, the first in {name}[{np.flatnonzero(counts)[0]}]"
        for name, counts in non_finite.items()
        if any(counts)
    )
    total = sum(map(sum, non_finite.values()))
    return (
        none("leaked_images", len(leaked), "images", copies, "remove the copies from all splits but one"),
        none(
            "empty_classes",
            len(empty),
            "classes",
            ", ".join(empty[:5]),
            "add images, or remove the class from data.labels",
        ),
        none("non_finite_values", total, "values", invalid, "replace NaN and infinity in the inputs"),
    )


def shared_samples(one: Split, other: Split) -> list[tuple[int, int]]:
    """Return the index pairs of the samples that are in both splits, by content (for images in files, the bytes)."""
    first, second = (
        _first_indices(split.digests) if isinstance(split, ImageFileSplit) else _read(split)[0]
        for split in (one, other)
    )
    return [(index, second[digest]) for digest, index in first.items() if digest in second]


def _first_indices(digests: Sequence[bytes]) -> dict[bytes, int]:
    indices: dict[bytes, int] = {}
    for index, digest in enumerate(digests):
        indices.setdefault(digest, index)
    return indices


def _read(split: Split) -> tuple[dict[bytes, int], list[int]]:
    """Return the first index of each content, and the number of non-finite values per sample."""
    if isinstance(split, ImageFileSplit) and split.pixel_digests:  # integers that the data stage has just read
        return _first_indices(split.pixel_digests), []
    digests: list[bytes] = []
    non_finite: list[int] = []
    for samples in batches(split, BATCH):
        for rows in zip(*samples.values(), strict=True):
            digests.append(hashlib.sha256(b"".join(map(_bytes, rows))).digest())
            non_finite.append(sum(int(np.sum(~np.isfinite(row))) for row in rows if row.dtype.kind == "f"))
    return _first_indices(digests), non_finite


def _bytes(row: Array) -> bytes:
    """Return a sample's content; the item size of a string array depends on the longest string beside it."""
    return repr(row.tolist()).encode() if row.dtype.kind == "U" else row.tobytes()


def _sample_name(split: Split, name: str, index: int) -> str:
    return split.files[index] if isinstance(split, ImageFileSplit) else f"{name}[{index}]"
