"""What training leaves behind, whichever framework did it."""

from pydantic import Field

from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.signature import Signature
from tasks.sources.learning import Epoch


class TrainFacts(Frozen):
    """How the training went, and what came out of it."""

    framework: str
    architecture: str
    parameters: int
    best_epoch: int = Field(description="the epoch whose weights were kept: the lowest validation loss; 0 for none")
    stopped_early: bool
    history: tuple[Epoch, ...]
    signature: Signature = Field(description="the contract of the model that was trained or brought")


def only_input(signature: Signature) -> str:
    """Return the name of the one input that a model trained here has.

    Raises:
        StageError: when the data has more of them.
    """
    if len(signature.inputs) != 1:
        names = [spec.name for spec in signature.inputs]
        raise StageError(f"the models trained here take one input; the data has {names}. Bring the model as a file")
    return signature.inputs[0].name
