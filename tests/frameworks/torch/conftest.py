"""A small network that learns small digits, and one that a user brings."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch_networks import bring

from frameworks.torch.classifier_training import TorchTraining
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Dataset
from tasks.train import train
from tasks.train.facts import TrainFacts


@pytest.fixture
def fit(digits: Dataset, workspace: Callable[..., Workspace]) -> Callable[..., Report[TrainFacts]]:
    def run(splits: dict[str, Artifact], out: Workspace | None = None, **config: object) -> Report[TrainFacts]:
        settings = {"architecture": "small-cnn", "epochs": 3, "batch_size": 64, "learning_rate": 0.01} | config
        training = TorchTraining.model_validate(settings)
        return train(training, out or workspace(), splits=splits, signature=digits.signature)

    return run


@pytest.fixture
def take(tmp_path: Path, workspace: Callable[..., Workspace]) -> Callable[..., Report[TrainFacts]]:
    """Return a function that writes a sound network and brings it, with changes of the configuration."""

    def run(**config: object) -> Report[TrainFacts]:
        return bring(workspace(), tmp_path / "user", "sound", **config)

    return run
