"""What a model that is trained here takes of the data, one input of images or vectors, and its output."""

from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.splits import Split, batches, require_labels

ROWS = 1024  # read at once
SCORES = "logits"
"""The output of a classifier that was trained here."""


def single_input(signature: Signature) -> str:
    """Return the name of the one input that a model trained here takes; raise StageError if the data has more."""
    if len(signature.inputs) != 1:
        names = [spec.name for spec in signature.inputs]
        raise StageError(f"models trained here take one input; the data has {names}. Fix: use a pretrained model")
    return signature.inputs[0].name


def image_fields(signature: Signature, what: str, fix: str) -> dict[str, Any]:
    """Return channels, height, width and classes; without images, raise StageError with `what` and the `fix`."""
    shape = signature.inputs[0].shape[1:]
    if len(shape) != 3 or signature.layout == "none":
        actual = f"the data has samples of shape {shape} and layout {signature.layout}"
        raise StageError(f"{what} takes images; {actual}. Fix: {fix}")
    names = ("channels", "height", "width") if signature.layout == "NCHW" else ("height", "width", "channels")
    return {**dict(zip(names, shape, strict=True)), "classes": len(signature.labels)}


def with_scores(signature: Signature) -> Signature:
    """Return the signature of a classifier trained here; its inputs are float32, whatever type the data has."""
    scores = TensorSpec(name=SCORES, dtype="float32", shape=("batch", len(signature.labels)))
    inputs = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
    return signature.replace(inputs=inputs, outputs=(scores,), primary_output=SCORES)


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
    return np.concatenate([batch[name].astype(np.float32, copy=False) for batch in batches(split, ROWS)])
