"""Small scenes of digits, and the training of detectors and segmenters on them."""

from dataclasses import dataclass
from pathlib import Path

from frameworks.torch.dense_training import DenseTraining
from gauntlet.core.artifact import Store
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from tasks.data import DataFacts, data
from tasks.train import train
from tasks.train.facts import TrainFacts
from wings.datasets.digit_scenes import DigitScenes

IMAGES = {"train_images": 48, "validation_images": 10, "calibration_images": 10, "test_images": 16}


@dataclass(frozen=True)
class Scenes:
    """The data stage's report, and the store with its splits."""

    store: Store
    report: Report[DataFacts]

    def fit(self, folder: Path, **settings: object) -> Report[TrainFacts]:
        """Train on the scenes; the folder holds the checkpoint."""
        folder.mkdir(exist_ok=True)
        learning = DenseTraining.model_validate({"epochs": 1, "batch_size": 16} | settings)
        space, signature = Workspace(self.store, folder), self.report.facts.signature
        return train(learning, space, splits=self.report.artifacts, signature=signature)


def prepare_scenes(folder: Path, **settings: object) -> Scenes:
    config = DigitScenes.model_validate({"image_size": 48, "digit_size": (16, 24)} | IMAGES | settings)
    store = Store(folder / "store")
    return Scenes(store, data(config, Workspace(store, folder)))
