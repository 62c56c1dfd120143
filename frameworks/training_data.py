"""The training samples of models that take one vector per sample."""

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import as_float32
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import Split, batches, require_labels

ROWS = 1024  # read at once


def require_vectors(signature: Signature, kind: str) -> None:
    """Raise StageError where a sample of the first input is no vector."""
    shape = signature.inputs[0].shape[1:]
    if len(shape) != 1:
        raise StageError(
            f"train.kind: {kind} takes one vector per sample; the data has samples of shape {shape}. "
            "Fix: turn images into vectors (data.hog), or save arrays of shape (samples, features)"
        )


def require_all_classes(split: Split, signature: Signature) -> None:
    """Raise StageError where a class has no sample in the split."""
    missing = sorted(set(range(len(signature.labels))) - set(require_labels(split).tolist()))
    if missing:
        names = ", ".join(signature.labels[number] for number in missing[:5])
        raise StageError(f"the training split has no sample of: {names}. Fix: add some, or remove the class")


def read_vectors(split: Split, name: str) -> npt.NDArray[np.float32]:
    """Return an input of all samples as float32, shape (n, features); it must fit into memory."""
    return np.concatenate([as_float32(batch)[name] for batch in batches(split, ROWS)]).astype(np.float32, copy=False)
