"""Split one set so that every class keeps its proportion."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.splits import SPLITS

Indices = npt.NDArray[np.int64]
GROUPS, TIMES = "split_groups", "split_times"
"""Arrays beside the inputs, shape (samples,): those of one group stay in one split, the latest are for the test."""


class SplitFractions(Frozen):
    """The fraction of all samples in each split; the rest is for training."""

    validation: float = Field(0.1, ge=0, lt=1, description="selects the best epoch; 0 for a pretrained model")
    calibration: float = Field(0.1, gt=0, lt=1, description="sets quantization ranges")
    test: float = Field(0.2, gt=0, lt=1, description="measures every accuracy")

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        total = self.validation + self.calibration + self.test
        if total > 1 + 1e-9:
            raise ValueError(f"validation, calibration and test take {total:.3g} of the samples; at most 1 is allowed")
        return self


def split_indices(count: int, labels: Indices | None, fractions: SplitFractions, seed: int) -> dict[str, Indices]:
    """Return the sample indices by split, shuffled and stratified; raise StageError if there are too few samples.

    A class with too few for every split is missing in some, which the stage `data` reports.
    """
    rest = np.random.default_rng(seed).permutation(count)
    parts: dict[str, Indices] = {}
    for name in ("test", "calibration", "validation"):
        size = round(count * getattr(fractions, name))
        if size and size >= len(rest):
            parts[name], rest = rest, rest[:0]
        elif size:
            rest, parts[name] = _divided(rest, size, None if labels is None else labels[rest], seed)
    if len(rest):
        parts["train"] = rest
    for name in ("test", "calibration"):
        if not len(parts.get(name, ())):
            raise StageError(f"{count} samples are too few: none is left for {name}")
    return {name: parts[name] for name in SPLITS if name in parts}


def split_blocks(keys: Array | Sequence[str], fractions: SplitFractions, seed: int, by: str) -> dict[str, Indices]:
    """Return the sample indices by split, shuffled, with all samples of equal keys in one of them.

    `by` is `TIMES` for the order train, validation, calibration, test, or `GROUPS` for a random one. Raise StageError
    where there are too few different keys.
    """
    values, block, counts = np.unique(np.asarray(keys), return_inverse=True, return_counts=True)
    rng = np.random.default_rng(seed)
    order = np.arange(len(values)) if by == TIMES else rng.permutation(len(values))
    middles = np.empty(len(values))
    middles[order] = (np.cumsum(counts[order]) - counts[order] / 2) / len(block)
    starts = 1 - np.cumsum([fractions.test, fractions.calibration, fractions.validation])[::-1]
    place = np.searchsorted(starts, middles[block], side="right")
    parts = {name: rng.permutation(np.flatnonzero(place == number)) for number, name in enumerate(SPLITS)}
    if lacking := [name for name in ("calibration", "test") if not len(parts[name])]:
        what = "times" if by == TIMES else "groups"
        raise StageError(f"{len(values)} different {what} are too few: none is left for {lacking[0]}")
    return {name: chosen for name, chosen in parts.items() if len(chosen)}


def keep_copies_together(
    indices: dict[str, Indices], digests: Sequence[Hashable], classes: Indices | None
) -> dict[str, Indices]:
    """Return the splits with all samples of equal digests in one of them, the first in the order of `SPLITS`.

    Unchanged if a split would lose more than half of its samples of a class, as in a table of a few flags.
    """
    homes: dict[Hashable, str] = {}
    for name in SPLITS:
        for index in indices.get(name, ()):
            homes.setdefault(digests[index], name)
    moved: dict[str, list[int]] = {name: [] for name in indices}
    for chosen in indices.values():
        for index in chosen.tolist():
            moved[homes[digests[index]]].append(index)
    labels = [0] * len(digests) if classes is None else classes.tolist()
    for name, chosen in indices.items():
        left = Counter(labels[index] for index in moved[name])
        if any(2 * left[label] < count for label, count in Counter(labels[index] for index in chosen).items()):
            return indices
    return {name: np.array(chosen, np.int64) for name, chosen in moved.items()}


def complete_splits(
    names: npt.NDArray[np.str_],
    classes: Indices | None,
    fractions: SplitFractions,
    seed: int,
    digests: Sequence[bytes],
    groups: Sequence[str] = (),
) -> dict[str, Indices]:
    """Return the shuffled indices by split, from the split that each sample belongs to; `""` where there are none.

    Missing splits for validation and calibration are taken out of `train`; without that, calibration out of `test`.
    Samples of equal `digests` are put into one split, unless `names` says otherwise; those of equal `groups`, if there
    are any, too.
    """
    if groups and "" not in names:
        raise StageError("data.group: the folder has its own splits. Fix: remove it, or put all images into one set")
    if groups:
        return split_blocks(groups, fractions, seed, GROUPS)
    if "" in names:
        indices = split_indices(len(names), classes, fractions, seed)
    else:
        indices = {name: np.flatnonzero(names == name) for name in SPLITS if name in names}
    for name in ("validation", "calibration"):
        donor = "train" if "train" in indices else "test"
        size = round(getattr(fractions, name) * len(indices[donor]))
        if name in indices or not size or (name == "validation" and donor == "test"):
            continue
        indices[donor], indices[name] = stratified_sample(indices[donor], size, classes, seed, name)
    indices = keep_copies_together(indices, [*zip(names.tolist(), digests, strict=True)], classes)
    # Shuffled, because later stages calibrate on and compare the first samples, which must not be of one class.
    return {name: np.random.default_rng(seed).permutation(chosen) for name, chosen in indices.items()}


def stratified_sample(
    indices: Indices, size: int, labels: Indices | None, seed: int, what: str
) -> tuple[Indices, Indices]:
    """Draw `size` samples; return the remaining and the drawn indices, sorted; raise StageError if there are too few.

    `labels` are the classes of all samples, if they have one each; `what` says in messages what the samples are for.
    """
    if size >= len(indices):
        raise StageError(f"{what} needs {size} images; the data has {len(indices)}, and some must remain")
    left, drawn = _divided(indices, size, None if labels is None else labels[indices], seed)
    return np.sort(left), np.sort(drawn)


def _divided(indices: Indices, size: int, classes: Indices | None, seed: int) -> tuple[Indices, Indices]:
    """Return the remaining and `size` drawn indices, with every class in both parts where it has enough samples."""
    from sklearn.model_selection import train_test_split

    if classes is not None:
        _, strata, counts = np.unique(classes, return_inverse=True, return_counts=True)
        strata[counts[strata] < 2] = counts.argmax()
        classes = strata if len({*strata.tolist()}) <= min(size, len(indices) - size) else None
    left, drawn = train_test_split(indices, test_size=size, stratify=classes, random_state=seed)
    return left, drawn
