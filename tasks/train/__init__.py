"""Training: real data in; a trained model, its golden answers and its predictions out."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from tasks.artifact import Artifact
from tasks.report import Report
from tasks.signature import Signature
from tasks.train.facts import TrainFacts
from tasks.train.torch import TorchTraining
from tasks.workspace import Workspace

TrainConfig = Annotated[TorchTraining, Field(description="how the model is trained")]


def train(
    config: TrainConfig, out: Workspace, *, splits: Mapping[str, Artifact], signature: Signature
) -> Report[TrainFacts]:
    """Train a model on the splits of the data stage.

    The report's artifacts are `model` (the source framework's file), `golden` (see `tasks.data.golden`) and
    `predictions` (`<split>` of shape (n, classes) and `<split>_labels` of shape (n,), for train, validation and test).
    """
    return config.fit({name: out.path(artifact) for name, artifact in splits.items()}, signature, out)
