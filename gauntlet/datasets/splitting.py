"""Splits one set so that every class keeps its proportion."""

from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen

Numbers = npt.NDArray[np.int64]


class SplitFractions(Frozen):
    """The part of all samples that each split gets; what is left over is for training."""

    validation: float = Field(0.1, ge=0, lt=1, description="chooses the best epoch; 0 for a model trained elsewhere")
    calibration: float = Field(0.1, gt=0, lt=1, description="sets quantisation ranges")
    test: float = Field(0.2, gt=0, lt=1, description="measures every accuracy")

    @model_validator(mode="after")
    def _leave_no_more_than_all(self) -> Self:
        total = self.validation + self.calibration + self.test
        if total > 1 + 1e-9:
            raise ValueError(
                f"validation, calibration and test take {total:.3g} of the samples; at most 1 can be taken"
            )
        return self


def split_indices(count: int, labels: Numbers | None, shares: SplitFractions, seed: int) -> dict[str, Numbers]:
    """Return the samples' numbers by split; with labels, every class is in each split in the same proportion.

    The order is random: whoever takes the first few samples of a split takes some of every class.

    Raises:
        StageError: when there are too few samples.
    """
    from sklearn.model_selection import train_test_split

    rest = np.random.default_rng(seed).permutation(count)
    found: dict[str, Numbers] = {}
    for name in ("test", "calibration", "validation"):
        size = round(count * getattr(shares, name))
        if size and size >= len(rest):
            found[name], rest = rest, rest[:0]
        elif size:
            classes = None if labels is None else labels[rest]
            try:
                rest, found[name] = train_test_split(rest, test_size=size, stratify=classes, random_state=seed)
            except ValueError as error:
                raise StageError(
                    f"{count} samples cannot be split so that every class is in each split ({error}); "
                    "bring more samples a class, or split them yourself: one file or folder a split"
                ) from error
    if len(rest):
        found["train"] = rest
    empty = [name for name, chosen in found.items() if not len(chosen)]
    missing = [name for name in ("test", "calibration") if name not in found or name in empty]
    if missing:
        raise StageError(f"{count} samples are too few: none is left for {missing[0]}")
    return {name: found[name] for name in ("train", "validation", "calibration", "test") if name in found}


def stratified_sample(numbers: Numbers, size: int, labels: Numbers, seed: int, what: str) -> tuple[Numbers, Numbers]:
    """Take `size` of the samples out.

    Args:
        numbers: the samples' numbers, shape (n,).
        size: how many to take.
        labels: of all samples, not only of these.
        seed: decides which ones are taken.
        what: what they are taken for, for the message.

    Returns:
        The numbers that are left, and those that were taken, each sorted.

    Raises:
        StageError: when there are too few.
    """
    from sklearn.model_selection import train_test_split

    if size >= len(numbers):
        raise StageError(f"{size} images are wanted for {what}; only {len(numbers)} are there, and some must be left")
    try:
        left, taken = train_test_split(numbers, test_size=size, stratify=labels[numbers], random_state=seed)
    except ValueError as error:
        raise StageError(
            f"{size} of {len(numbers)} images cannot be taken for {what} so that every class is in both parts ({error})"
        ) from error
    return np.sort(left), np.sort(taken)
