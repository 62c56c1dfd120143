"""Training, or taking a model that was trained elsewhere: data in; a model and its golden answers out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.read import read_split
from tasks.report import Report
from tasks.signature import Signature
from tasks.train.brought import OnnxModel
from tasks.train.facts import TrainFacts
from tasks.train.flax import FlaxTraining
from tasks.train.keras import KerasTraining
from tasks.train.keras_brought import KerasModel, SavedModelFolder
from tasks.train.sklearn import SklearnTraining
from tasks.train.sklearn_brought import SklearnModel
from tasks.train.torch import TorchTraining
from tasks.train.torch_brought import TorchModel
from tasks.workspace import Workspace

TrainConfig = Annotated[
    TorchTraining
    | TorchModel
    | KerasTraining
    | KerasModel
    | SavedModelFolder
    | SklearnTraining
    | SklearnModel
    | FlaxTraining
    | OnnxModel,
    Field(discriminator="kind"),
]


def train(
    config: TrainConfig,
    out: Workspace,
    *,
    splits: Mapping[str, Artifact],
    signature: Signature,
    files: tuple[Path, ...] = (),
) -> Report[TrainFacts]:
    """Train a model on the splits of the data stage, or take one as it is.

    Args:
        config: how.
        out: where to write.
        splits: the data.
        signature: the contract as far as the data decides it.
        files: the user's files that are read; an argument so that their content is part of the work's identity.

    Returns:
        Facts with the whole signature, and the artifacts `model` (the source framework's file), `golden` (see
        `tasks.data.golden`) and, where there are labels, `predictions` (class numbers: `<split>` and `<split>_labels`,
        each of shape (n,); of `train` a sample as large as `test`).
    """
    return config.fit({name: read_split(out.path(artifact)) for name, artifact in splits.items()}, signature, out)
