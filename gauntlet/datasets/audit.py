"""Data checks that every later number relies on: no leaked samples, no empty classes, only finite values."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gauntlet.core.arrays import Array
from gauntlet.core.kinds import kinds, required
from gauntlet.core.report import Check, Severity
from gauntlet.core.signature import Layout
from gauntlet.datasets.image_files import Fingerprint, ImageFileSplit, fingerprint
from gauntlet.datasets.splits import Dataset, NearDuplicate, Split, Splits, batches

BATCH = 64


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
    dataset: Dataset,
    samples_per_class: Mapping[str, Mapping[str, int]],
    max_near_duplicates: int | None = None,
    *,
    trained: bool = True,
) -> Audit:
    """Check that no sample is in two splits (by content, unless they are random), no class is empty, all is finite.

    Test images that are almost the same as an image of another split are warned of, or limited to a number.
    `samples_per_class` are those of each split with classes, by label. Without `trained`, no model learns from these
    splits: a class without samples, values that are not finite, and samples in two splits are warnings. The latter
    always are where the inputs are not images: rows of a table and short texts are often equal by nature. The samples
    are read once, in batches; only their digests and fingerprints stay in memory.
    """
    splits, layout = dataset.splits, dataset.signature.layout
    contents = {name: _read(split, layout) for name, split in splits.items()}
    empty = [
        f"{name}: {label}"
        for name, counts in samples_per_class.items()
        for label, count in counts.items()
        if name in ("train", "test") and not count
    ]
    fix = "add samples, or remove the class from data.labels"
    named = ", ".join(empty[:5])
    severity: Severity = "error" if trained else "warning"
    checks = (
        *(() if dataset.random else (_leak_check(splits, contents, images=layout != "none", trained=trained),)),
        Check.of("data.empty_classes", len(empty), "==", 0, named, fix, unit="classes", severity=severity),
        _finite_check(contents, trained=trained),
    )
    if max_near_duplicates is not None:
        required("copies", "images", "max_near_duplicates")
    if not kinds("copies") or "test" not in contents or not contents["test"].fingerprints:
        return Audit(checks, ())
    pairs = kinds("copies")["images"].near_duplicates(splits, contents)
    check = kinds("copies")["images"].limit_check(pairs, len(splits["test"]), max_near_duplicates)
    return Audit((*checks, check), pairs)


def _leak_check(splits: Splits, contents: Mapping[str, SplitContents], *, images: bool, trained: bool) -> Check:
    places = {name: _first_indices(content.digests) for name, content in contents.items()}
    occurrences = Counter(digest for indices in places.values() for digest in indices)
    leaked = sorted(
        [(name, indices[digest]) for name, indices in places.items() if digest in indices]
        for digest, count in occurrences.items()
        if count > 1
    )
    copies = "; ".join(
        f"the same {'image' if images else 'sample'} is "
        + " and ".join(sample_name(splits[name], name, index) for name, index in group)
        for group in leaked[:3]
    )
    unit = "images" if images else "samples"
    severity: Severity = "error" if images and trained else "warning"
    fix = "remove the copies from all splits but one"
    return Check.of(f"data.leaked_{unit}", len(leaked), "==", 0, copies, fix, unit=unit, severity=severity)


def _finite_check(contents: Mapping[str, SplitContents], *, trained: bool) -> Check:
    """Return the check that all values are finite; of a brought model, its own outputs tell whether it needs that."""
    invalid = ", ".join(
        f"{name}: {sum(content.non_finite)}, the first in {name}[{np.flatnonzero(content.non_finite)[0]}]"
        for name, content in contents.items()
        if any(content.non_finite)
    )
    total = sum(sum(content.non_finite) for content in contents.values())
    fix = "replace NaN and infinity in the inputs, if the model does not take them for missing values"
    fix += ", or: --set 'overrides=[{check: data.non_finite_values, reason: missing values}]'" if trained else ""
    severity: Severity = "warning" if total and not trained else "error"
    return Check.of("data.non_finite_values", total, "==", 0, invalid, fix, unit="values", severity=severity)


def shared_samples(split: Split, other: Split) -> list[tuple[int, int]]:
    """Return the index pairs of the samples that are in both splits, compared as inputs of the model, by name.

    Images in files that become inputs in the same way are compared by the files' bytes, without decoding them.
    """
    if isinstance(split, ImageFileSplit) and isinstance(other, ImageFileSplit) and split.transform == other.transform:
        first, second = _first_indices(split.digests), _first_indices(other.digests)
    else:
        types = _common_types(split, other)
        first, second = (_first_indices(_input_digests(part, types)) for part in (split, other))
    return [(index, second[digest]) for digest, index in first.items() if digest in second]


def sample_digests(split: Split) -> Sequence[bytes]:
    """Return the digest of each sample's content, as the check for leaks compares them."""
    return _read(split).digests


def _common_types(*splits: Split) -> dict[str, str]:
    """Return the inputs that all splits have, and the type in which a session that takes floats would compare each."""
    firsts = [split.take(slice(0, 1)) for split in splits]
    kinds = {name: {first[name].dtype.kind for first in firsts} for name in firsts[0] if all(name in f for f in firsts)}
    return {name: "U" if "U" in k else "float32" if "f" in k else "int64" for name, k in sorted(kinds.items())}


def _input_digests(split: Split, types: Mapping[str, str]) -> Iterator[bytes]:
    """Yield what identifies each sample's inputs of these names; nothing without any."""
    for samples in batches(split, BATCH) if types else ():
        columns = [samples[name] if kind == "U" else samples[name].astype(kind) for name, kind in types.items()]
        for rows in zip(*columns, strict=True):
            yield hashlib.sha256(b"".join(map(_bytes, rows))).digest()


def _first_indices(digests: Iterable[bytes]) -> dict[bytes, int]:
    indices: dict[bytes, int] = {}
    for index, digest in enumerate(digests):
        indices.setdefault(digest, index)
    return indices


def _read(split: Split, layout: Layout | None = None) -> SplitContents:
    """Return what identifies each sample, and how many of its values are not finite; with a layout, images' prints."""
    if isinstance(split, ImageFileSplit) and split.pixel_digests:  # integers that the data stage has just read
        return SplitContents(split.pixel_digests, (), split.fingerprints)
    if parts := getattr(split, "parts", ()):  # of a split that joins two others
        base, extra = (_read(part, layout) for part in parts)
        prints = (*base.fingerprints, *extra.fingerprints)
        counts = (*(base.non_finite or [0] * len(parts[0])), *extra.non_finite)
        return SplitContents((*base.digests, *extra.digests), counts, prints)
    digests: list[bytes] = []
    non_finite: list[int] = []
    fingerprints: list[Fingerprint] = []
    for samples in batches(split, BATCH):
        for rows in zip(*samples.values(), strict=True):
            digests.append(hashlib.sha256(b"".join(map(_bytes, rows))).digest())
            non_finite.append(sum(int(np.sum(~np.isfinite(row))) for row in rows if row.dtype.kind == "f"))
            row, takes_images = rows[0], layout not in (None, "none") and len(rows) == 1
            if takes_images and row.ndim == 3 and row.dtype.kind in "fiu" and row.size > 0:
                fingerprints.append(fingerprint(row.transpose(1, 2, 0) if layout == "NCHW" else row))
    return SplitContents(digests, non_finite, fingerprints)


def _bytes(row: Array) -> bytes:
    """Return a sample's content; the item size of a string array depends on the longest string beside it."""
    return repr(row.tolist()).encode() if row.dtype.kind == "U" else row.tobytes()


def sample_name(split: Split, name: str, index: int) -> str:
    """Return a sample's file, or its place in the split."""
    if (parts := getattr(split, "parts", ())) and index < len(parts[0]):
        return sample_name(parts[0], name, index)
    return split.files[index] if isinstance(split, ImageFileSplit) else f"{name}[{index}]"
