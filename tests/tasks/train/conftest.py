"""A few hundred small digits, so that an epoch takes a tenth of a second."""

from collections.abc import Callable

import numpy as np
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels
from tasks.train import train
from tasks.train.facts import TrainFacts
from tasks.train.torch import TorchTraining

SIZES = {"train": 193, "validation": 60, "calibration": 10, "test": 40}  # 193: the last step of an epoch has one image


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return Digits(image_size=8).load()


@pytest.fixture
def small(digits: Dataset, workspace: Callable[..., Workspace]) -> Callable[..., dict[str, Artifact]]:
    """Return a function that stores the splits, after `change(name, inputs)` has damaged them."""

    def make(change: Callable[[str, np.ndarray], None] | None = None) -> dict[str, Artifact]:
        out = workspace()
        kept = {}
        for name, size in SIZES.items():
            split = digits.splits[name]
            inputs = split.take(slice(0, size))["input"].copy()
            if change:
                change(name, inputs)
            kept[name] = out.store_file(
                ArraySplit({"input": inputs}, require_labels(split)[:size]).save(out.folder, name)
            )
        return kept

    return make


@pytest.fixture
def fit(digits: Dataset, workspace: Callable[..., Workspace]) -> Callable[..., Report[TrainFacts]]:
    def run(splits: dict[str, Artifact], out: Workspace | None = None, **config: object) -> Report[TrainFacts]:
        settings = {"architecture": "small-cnn", "epochs": 3, "batch_size": 64, "learning_rate": 0.01} | config
        training = TorchTraining.model_validate(settings)
        return train(training, out or workspace(), splits=splits, signature=digits.signature)

    return run
