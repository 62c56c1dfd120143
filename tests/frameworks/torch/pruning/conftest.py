"""A small network that has learned digits of 8x8 pixels, and what a test needs to prune it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter

from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.training_loop import TorchLoopConfig
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import ArraySplit, require_labels
from tasks.prune import PruneConfig, PruneFacts, prune
from tasks.train import train
from tasks.train.facts import TrainFacts

SIZES = {"train": 400, "validation": 150, "calibration": 60, "test": 250}


@dataclass(frozen=True)
class Learned:
    """The stages data and train, run once."""

    store: Store
    splits: dict[str, Artifact]
    train: Report[TrainFacts]

    @property
    def golden(self) -> Artifact:
        return self.train.artifacts["golden"]


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    root = tmp_path_factory.mktemp("learned")
    out = Workspace(Store(root / "store"), root / "work")
    out.folder.mkdir()
    data, splits = Digits(image_size=8).load(), {}
    for name, size in SIZES.items():
        split = data.splits[name]
        some = ArraySplit(split.take(slice(0, size)), require_labels(split)[:size])
        splits[name] = out.store_file(some.save(out.folder, name))
    config = TorchTraining(architecture="small-cnn", epochs=10, learning_rate=0.01)
    return Learned(out.store, splits, train(config, out, splits=splits, signature=data.signature))


@pytest.fixture
def pruned(learned: Learned, workspace: Callable[..., Workspace]) -> Callable[..., Report[PruneFacts]]:
    """Return a function that prunes it; `config` is what a configuration would say."""

    def run(out: Workspace | None = None, training: TorchLoopConfig | None = None, splits=None, **config: object):
        return prune(
            TypeAdapter(PruneConfig).validate_python({"learning_rate": 0.01} | config),
            out or workspace(learned.store),
            network=learned.train.artifacts["model"],
            signature=learned.train.facts.signature,
            golden=learned.golden,
            splits=splits or learned.splits,
            training=training,
        )

    return run
