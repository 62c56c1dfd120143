"""Train a model or load a pretrained one, and record its golden outputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from tasks.train.boosting import BoostingModel, BoostingTraining
from tasks.train.facts import TrainFacts
from tasks.train.flax import FlaxTraining
from tasks.train.jax_pretrained import JaxModel
from tasks.train.keras import KerasTraining
from tasks.train.keras_pretrained import KerasModel, SavedModelFolder
from tasks.train.onnx_pretrained import OnnxModel
from tasks.train.sklearn import SklearnTraining
from tasks.train.sklearn_pretrained import SklearnModel
from tasks.train.torch import TorchTraining
from tasks.train.torch_detection import TorchDetection
from tasks.train.torch_pretrained import TorchModel
from tasks.train.torch_program import ExportedProgram, ScriptedModule
from tasks.train.torch_segmentation import TorchSegmentation

FromScratch = (
    TorchTraining
    | TorchDetection
    | TorchSegmentation
    | KerasTraining
    | SklearnTraining
    | BoostingTraining
    | FlaxTraining
)
Brought = ExportedProgram | ScriptedModule | KerasModel | SavedModelFolder | SklearnModel | JaxModel
"""Models that are loaded, and tried, without further code of the user's, or with a function that is named."""
Pretrained = TorchModel | Brought | BoostingModel | OnnxModel
TrainConfig = Annotated[FromScratch | Pretrained, Field(discriminator="kind")]


def train(
    config: TrainConfig,
    workspace: Workspace,
    *,
    splits: Mapping[str, Artifact],
    signature: Signature,
    files: tuple[Path, ...] = (),
) -> Report[TrainFacts]:
    """Train a model on the splits of the data stage, or load a pretrained one.

    `signature` holds what the data determines; `files` are the user's files, given to make them part of the cache key.

    Returns:
        Facts with the complete signature, and the artifacts `model` (the framework's file), `golden` (see
        `gauntlet.datasets.golden`) and, with labels, `predictions` (class indices: `<split>` and `<split>_labels`, each
        of shape (n,); for `train`, a sample as large as `test`).

    Raise StageError if a file cannot be read, or the data does not fit the model.
    """
    opened = {name: read_split(workspace.path(artifact)) for name, artifact in splits.items()}
    return config.fit(opened, signature, workspace)
