"""The signature of a model that is trained here: one input and one output."""

from typing import Any

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec

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
