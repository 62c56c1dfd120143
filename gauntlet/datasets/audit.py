"""What makes every later number a lie: leaked samples, classes without samples, values that are no numbers."""

import hashlib
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from gauntlet.core.report import Check
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import Dataset, Split, batches

BATCH = 64


def audit_splits(dataset: Dataset) -> tuple[Check, ...]:
    """Check that no sample is in two splits (by content), no class is empty, and every value is finite.

    The samples are read once, in batches, so nothing of the data stays in memory but its digests.
    """
    places: dict[str, dict[bytes, int]] = {}
    broken: dict[str, list[int]] = {}
    for name, split in dataset.splits.items():
        places[name], broken[name] = _read(split)
    homes: dict[bytes, dict[str, int]] = {}
    for one, other in combinations(places, 2):
        for digest in places[one].keys() & places[other].keys():
            homes.setdefault(digest, {}).update({name: places[name][digest] for name in (one, other)})
    leaked = sorted(list(home.items()) for home in homes.values())
    empty = [
        f"{name}: {label}"
        for name, split in dataset.splits.items()
        for number, label in enumerate(dataset.signature.labels)
        if name in ("train", "test") and split.labels is not None and not np.any(split.labels == number)
    ]
    return (
        Check(
            name="data.leaked_images",
            value=len(leaked),
            op="==",
            limit=0,
            unit="images",
            detail="; ".join(
                "the same image is " + " and ".join(_title(dataset, *place) for place in home) for home in leaked[:3]
            ),
            remedy="remove the copies from all splits but one",
        ),
        Check(
            name="data.empty_classes",
            value=len(empty),
            op="==",
            limit=0,
            unit="classes",
            detail=", ".join(empty[:5]),
            remedy="add images of the class, or take it out of data.labels",
        ),
        Check(
            name="data.non_finite_values",
            value=sum(map(sum, broken.values())),
            op="==",
            limit=0,
            unit="values",
            detail=", ".join(
                f"{name}: {sum(counts)}, the first in {name}[{np.flatnonzero(counts)[0]}]"
                for name, counts in broken.items()
                if any(counts)
            ),
            remedy="replace NaN and infinity in the inputs",
        ),
    )


def shared_samples(one: Split, other: Split) -> list[tuple[int, int]]:
    """Return the places of the samples that are in both splits, by content: of pictures in files, the files'."""
    there = _places(other)
    return [(place, there[digest]) for digest, place in _places(one).items() if digest in there]


def _places(split: Split) -> dict[bytes, int]:
    return _first(split.digests) if isinstance(split, ImageFileSplit) else _read(split)[0]


def _first(digests: Sequence[bytes]) -> dict[bytes, int]:
    """Return the first place of each digest."""
    return {digest: place for place, digest in reversed([*enumerate(digests)])}


def _read(split: Split) -> tuple[dict[bytes, int], list[int]]:
    """Return the first place of each content, and the count of values that are no numbers by sample."""
    if isinstance(split, ImageFileSplit) and split.pixel_digests:  # its pictures, all whole numbers, were read just now
        return _first(split.pixel_digests), []
    places: dict[bytes, int] = {}
    broken: list[int] = []
    for samples in batches(split, BATCH):
        arrays = list(samples.values())
        for rows in zip(*arrays, strict=True):
            places.setdefault(hashlib.sha256(b"".join(map(_bytes, rows))).digest(), len(broken))
            broken.append(sum(int(np.sum(~np.isfinite(row))) for row in rows if row.dtype.kind == "f"))
    return places, broken


def _bytes(row: npt.NDArray[np.generic]) -> bytes:
    """Return a sample's content; the same text is stored wider beside a longer one."""
    return repr(row.tolist()).encode() if row.dtype.kind == "U" else row.tobytes()


def _title(dataset: Dataset, name: str, index: int) -> str:
    split = dataset.splits[name]
    return split.files[index] if isinstance(split, ImageFileSplit) else f"{name}[{index}]"
