"""Train a model or load a pretrained one, and record its golden outputs."""

from collections.abc import Mapping
from typing import Annotated

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.stage import stage
from gauntlet.core.unions import OneOf
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from tasks.train.base import Training
from tasks.train.facts import TrainFacts
from tasks.train.onnx_pretrained import OnnxModel

TrainConfig = Annotated[Training, OneOf("train", (OnnxModel,))]


@stage(any_processor=True)
def train(
    config: TrainConfig,
    workspace: Workspace,
    *,
    splits: Mapping[str, Artifact],
    signature: Signature,
    files: tuple[object, ...] = (),
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
