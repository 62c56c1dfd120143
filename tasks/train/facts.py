"""What training leaves behind, whichever framework did it."""

from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.frameworks.training import EpochMetrics
from gauntlet.metrics.error_metrics import predicted_classes


class TrainFacts(Frozen):
    """How the training went, and what came out of it."""

    framework: str
    architecture: str
    parameters: int
    best_epoch: int = Field(0, description="the epoch whose weights were kept: the lowest validation loss; 0 for none")
    stopped_early: bool = False
    history: tuple[EpochMetrics, ...] = ()
    signature: Signature = Field(description="the contract of the model that was trained or brought")


def single_input(signature: Signature) -> str:
    """Return the name of the one input that a model trained here has.

    Raises:
        StageError: when the data has more of them.
    """
    if len(signature.inputs) != 1:
        names = [spec.name for spec in signature.inputs]
        raise StageError(f"the models trained here take one input; the data has {names}. Bring the model as a file")
    return signature.inputs[0].name


def picture_shape(signature: Signature, what: str, remedy: str) -> tuple[int, int, int]:
    """Return channels, height and width of the pictures that a network trained here takes.

    Args:
        signature: of the data.
        what: takes images, for the message.
        remedy: where the data has none.

    Raises:
        StageError: when the data has none.
    """
    shape = signature.inputs[0].shape[1:]
    if len(shape) != 3 or signature.layout == "none":
        told = f"the data has samples of shape {shape} and layout {signature.layout}"
        raise StageError(f"{what} takes images; {told}. {remedy}")
    first, second, third = (int(axis) for axis in shape)
    return (first, second, third) if signature.layout == "NCHW" else (third, first, second)


def with_scores(signature: Signature, output: str) -> Signature:
    """Return the signature of a classifier trained here: it takes floats, whatever type the data has."""
    scores = TensorSpec(name=output, dtype="float32", shape=("batch", len(signature.labels)))
    inputs = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
    return signature.replace(inputs=inputs, outputs=(scores,), primary_output=output)


def find_answer(asked: str | None, outputs: NamedArrays, labels: tuple[str, ...]) -> str | None:
    """Return the output that names the class: the one asked for, or the first with a score a label, scores, or labels.

    Raises:
        StageError: when there is no output of the name.
    """
    if asked is not None and asked not in outputs:
        raise StageError(f"train.primary_output: the model has no output {asked!r}; it has {sorted(outputs)}")
    named = [name for name, array in outputs.items() if predicted_classes(array, labels) is not None]
    fitting = [name for name in named if outputs[name].shape[1:] == (len(labels),)]
    scores = [name for name in named if outputs[name].dtype.kind == "f"]
    return asked or next(iter((*fitting, *scores, *named)), None)
