"""Takes samples out of a set so that every class keeps its proportion."""

import numpy as np
import numpy.typing as npt

from tasks.errors import StageError

Numbers = npt.NDArray[np.int64]


def draw(numbers: Numbers, size: int, labels: Numbers, seed: int, what: str) -> tuple[Numbers, Numbers]:
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
