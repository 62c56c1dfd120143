"""What training leaves behind, whichever framework did it."""

import numpy as np
from pydantic import Field

from tasks.frozen import Frozen, Number
from tasks.report import Check


class Epoch(Frozen):
    """One pass over the training images."""

    epoch: int = Field(ge=1)
    train_loss: Number
    validation_loss: Number
    validation_accuracy: Number
    learning_rate: Number = Field(description="at the end of the epoch")


class TrainFacts(Frozen):
    """How the training went."""

    framework: str
    architecture: str
    parameters: int
    best_epoch: int = Field(description="the epoch whose weights were kept: the lowest validation loss; 0 for none")
    stopped_early: bool
    history: tuple[Epoch, ...]


def finite_loss(loss: float, where: str) -> Check:
    """Return the check that stops a training whose loss is no number any more."""
    return Check(
        name="train.loss",
        value=loss,
        op="<",
        limit=float("inf"),
        detail=where,
        remedy="lower train.learning_rate, or look for broken values in the training images"
        if not np.isfinite(loss)
        else "",
    )
