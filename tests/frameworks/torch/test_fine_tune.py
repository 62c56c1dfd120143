"""Fine-tuning of a brought network: it gains on new data, keeps what is frozen, and is refused if it became worse."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from frameworks.torch import network as torch_network
from frameworks.torch.brought_network import TorchModel
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels
from tasks.train import train
from tasks.train.facts import TrainFacts

Small = Callable[..., dict[str, Artifact]]
NETS = """
from torch import nn


def make(classes=10):
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, classes))
"""
SIZES = {"train": 193, "validation": 60, "test": 40}
HEAD = ("9.weight", "9.bias")


@pytest.fixture(scope="module")
def brought(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the network's code, and its weights once it has learned the digits."""
    folder = tmp_path_factory.mktemp("brought")
    (folder / "nets.py").write_text(NETS)
    namespace: dict[str, Callable[..., torch.nn.Module]] = {}
    exec(NETS, namespace)
    torch.manual_seed(0)
    torch.save(namespace["make"]().state_dict(), folder / "weights.pt")
    values = {"factory": "nets:make", "code_folder": folder, "weights": folder / "weights.pt"}
    model = TorchModel.model_validate(values | {"fine_tune": {"epochs": 10, "learning_rate": 0.01}})
    (folder / "work").mkdir()
    out = Workspace(Store(folder / "store"), folder / "work")
    splits = {
        name: ArraySplit(digits.splits[name].take(slice(0, size)), require_labels(digits.splits[name])[:size])
        for name, size in SIZES.items()
    }
    report = model.fit(splits, digits.signature, out)
    report.raise_if_blocked()
    network, _ = torch_network.load_network(out.path(report.artifacts["model"]), trust=True)
    torch.save(network.state_dict(), folder / "weights.pt")
    return folder


@pytest.fixture
def bring(brought: Path, digits: Dataset, workspace: Callable[..., Workspace]) -> Callable[..., Report[TrainFacts]]:
    """Return a function that brings the network that has learned the digits."""

    def run(splits: dict[str, Artifact], signature: Signature | None = None, **config: object) -> Report[TrainFacts]:
        values = {"factory": "nets:make", "code_folder": brought, "weights": brought / "weights.pt"} | config
        model = TorchModel.model_validate(values)
        return train(model, workspace(), splits=splits, signature=signature or digits.signature)

    return run


def invert(name: str, inputs: np.ndarray) -> None:
    inputs *= -1


def test_network_gains_on_corrupted_images_when_it_is_fine_tuned(
    bring, small: Small, workspace: Callable[..., Workspace]
) -> None:
    report = bring(small(invert), fine_tune={"epochs": 8, "learning_rate": 0.005})
    report.raise_if_blocked()
    tuning = report.facts.fine_tuning
    assert tuning.after > tuning.before + 0.3
    assert tuning.high < 0
    assert tuning.after == report.facts.history[report.facts.best_epoch - 1].validation_accuracy
    with np.load(workspace().path(report.artifacts["predictions"])) as file:
        assert np.mean(file["validation"] == file["validation_labels"]) == tuning.after
        assert "train" in file.files  # so that the gap to the test split is judged
    before = bring(small(invert)).facts
    assert (before.fine_tuning, before.initial_weights, before.history) == (None, None, ())


def test_gate_fails_when_the_network_became_worse(bring, small: Small, workspace: Callable[..., Workspace]) -> None:
    out, splits = workspace(), small()
    split = read_split(out.path(splits["train"]))
    wrong = (require_labels(split) + 1) % 10  # teaches every digit as the next one
    misled = splits | {
        "train": out.store_file(ArraySplit(split.take(np.arange(len(split))), wrong).save(out.folder, "misled"))
    }
    report = bring(misled, fine_tune={"epochs": 6, "learning_rate": 0.01, "patience": 1000})
    # The epoch with the lowest validation loss is kept; even the first one is worse than the network that was brought.
    (check,) = report.failures
    assert check.name == "train.max_accuracy_drop"
    assert check.value > check.limit
    assert "validation samples lost" in check.detail
    assert "lower train.fine_tune.learning_rate" in check.remedy
    assert {"model", "golden"} <= report.artifacts.keys()  # the check may be overridden


def test_loss_is_reported_with_its_key_when_it_is_not_finite(bring, small: Small) -> None:
    (check,) = bring(small(), fine_tune={"learning_rate": 1e12, "epochs": 2}).failures
    assert check.name == "train.loss"
    assert "lower train.fine_tune.learning_rate" in check.remedy


def test_head_is_replaced_when_the_data_has_other_classes(bring, small: Small, digits: Dataset, workspace) -> None:
    out, splits = workspace(), {}
    for name, artifact in small().items():
        split = read_split(out.path(artifact))
        chosen = np.flatnonzero(require_labels(split) < 4)
        labels = require_labels(split)[chosen]
        splits[name] = out.store_file(ArraySplit(split.take(chosen), labels).save(out.folder, name))
    signature = digits.signature.replace(labels=digits.signature.labels[:4])
    arguments = {"classes": 4}
    tuning = {"epochs": 10, "learning_rate": 0.01, "batch_size": 16}
    report = bring(splits, signature, arguments=arguments, fine_tune=tuning)
    report.raise_if_blocked()
    assert report.facts.initial_weights.replaced == HEAD
    assert report.facts.signature.outputs[0].shape == ("batch", 4)
    assert report.facts.fine_tuning is None  # there is nothing to compare with
    assert report.facts.history[report.facts.best_epoch - 1].validation_accuracy > 0.8
    with pytest.raises(StageError, match=r"of another shape: 9.weight \[10, 128\] for \[4, 128\]"):
        bring(splits, signature, arguments=arguments)  # nobody would train the new head


def test_fine_tuning_is_refused_when_the_network_has_too_few_scores(bring, small: Small) -> None:
    with pytest.raises(StageError, match=r"a score for each of the data's 10 classes; the network has .*\[60, 4\]"):
        bring(small(), arguments={"classes": 4}, fine_tune={})


def test_fine_tuning_is_refused_when_labels_are_missing(bring, small: Small, workspace) -> None:
    out, splits = workspace(), small()
    split = read_split(out.path(splits["train"]))
    unlabelled = ArraySplit(split.take(np.arange(len(split))), None).save(out.folder, "unlabelled")
    with pytest.raises(StageError, match="training needs labels; the split 'train' has none"):
        bring(splits | {"train": out.store_file(unlabelled)}, fine_tune={})
