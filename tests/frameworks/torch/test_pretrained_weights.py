"""Training that starts from given weights: a file or published ones, another head, and frozen layers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from frameworks.torch import network as torch_network
from frameworks.torch.classifier_training import TorchTraining
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels
from tasks.train import train
from tasks.train.facts import TrainFacts

Fit = Callable[..., Report[TrainFacts]]
Small = Callable[..., dict[str, Artifact]]
State = dict[str, torch.Tensor]
HEAD = ("14.weight", "14.bias")


@pytest.fixture
def state_of(workspace: Callable[..., Workspace]) -> Callable[[Report[TrainFacts]], State]:
    """Return a function that reads the weights of a trained network."""

    def read(report: Report[TrainFacts]) -> State:
        network, _ = torch_network.load_network(workspace().path(report.artifacts["model"]))
        return network.state_dict()

    return read


@pytest.fixture
def half(digits: Dataset, small: Small, workspace: Callable[..., Workspace]) -> Report[TrainFacts]:
    """A network that has learned the digits 0 to 4, and knows five classes."""
    out, splits = workspace(), {}
    for name, artifact in small().items():
        split = read_split(out.path(artifact))
        chosen = require_labels(split) < 5
        splits[name] = out.store_file(
            ArraySplit(split.take(chosen.nonzero()[0]), require_labels(split)[chosen]).save(out.folder, name)
        )
    config = TorchTraining(architecture="small-cnn", epochs=6, batch_size=64, learning_rate=0.01)
    signature = digits.signature.replace(labels=digits.signature.labels[:5])
    return train(config, workspace(), splits=splits, signature=signature)


def test_head_learns_other_classes_while_frozen_layers_stay_bit_identical(
    half, fit: Fit, small: Small, state_of, tmp_path: Path
) -> None:
    before, file = state_of(half), tmp_path / "half.safetensors"
    save_file(before, file)
    report = fit(small(), weights=str(file), trainable="head", epochs=12, batch_size=32, learning_rate=0.02)
    report.raise_if_blocked()
    after, started = state_of(report), report.facts.initial_weights
    assert (started.source, started.replaced, started.trained_parameters) == (file.name, HEAD, 64 * 10 + 10)
    assert all(torch.equal(before[name], after[name]) for name in before if name not in HEAD)
    assert after["14.weight"].shape == (10, 64)
    assert report.facts.history[report.facts.best_epoch - 1].validation_accuracy > 0.5  # chance is 0.1


@pytest.mark.parametrize(
    ("trainable", "trained"),
    [
        (1, {"14.weight", "14.bias"}),
        (2, {"9.weight", "9.bias", "14.weight", "14.bias"}),
        (["8", "14"], {"8.weight", "14.weight", "14.bias"}),
    ],
)
def test_only_the_named_layers_change_when_some_are_trainable(
    fit: Fit, small: Small, state_of, tmp_path: Path, trainable: object, trained: set[str]
) -> None:
    splits = small()
    before = state_of(fit(splits, epochs=1))
    torch.save(before, tmp_path / "w.pt")
    after = state_of(fit(splits, weights=str(tmp_path / "w.pt"), trainable=trainable, epochs=1))
    statistics = {f"{name.split('.')[0]}.{kind}" for name in trained for kind in ("running_mean", "running_var")}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed - statistics - {"9.num_batches_tracked"} == trained


def test_layers_are_named_in_the_axis_order_of_the_architecture_when_images_are_nhwc(
    fit: Fit, small: Small, state_of, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    torch.save(state_of(fit(small(), epochs=1)), tmp_path / "w.pt")
    dataset, out = Digits(image_size=8, layout="NHWC").load(), workspace()
    splits = {name: out.store_file(split.save(out.folder, name)) for name, split in dataset.splits.items()}
    config = TorchTraining(architecture="small-cnn", epochs=1, weights=str(tmp_path / "w.pt"), trainable=("14",))
    report = train(config, workspace(), splits=splits, signature=dataset.signature)
    before = torch.load(tmp_path / "w.pt", weights_only=True)
    after = state_of(report)
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[f"1.{name}"])}
    assert changed == set(HEAD)


def test_weights_are_refused_when_they_do_not_fit_the_architecture(fit: Fit, small: Small, tmp_path: Path) -> None:
    splits, file = small(), tmp_path / "w.pt"
    torch.save({"0.weight": torch.zeros(1, 3, 3, 3), "tail.weight": torch.zeros(3)}, file)
    expected = r"w.pt does not fit the network: missing: 1.weight, .* and \d+ more; unexpected: tail.weight; of another"
    with pytest.raises(StageError, match=expected):
        fit(splits, weights=str(file))
    with pytest.raises(StageError, match=r"train.weights: .*gone.pt: no such file"):
        fit(splits, weights=str(tmp_path / "gone.pt"))


def test_a_layer_is_refused_with_the_last_names_when_the_network_has_none_of_that_name(
    fit: Fit, small: Small, state_of, tmp_path: Path
) -> None:
    splits = small()
    torch.save(state_of(fit(splits, epochs=1)), tmp_path / "w.pt")
    with pytest.raises(StageError, match=r"no layer 'fc'; its last layers are 0, 1, 4, 5, 8, 9, 14"):
        fit(splits, weights=str(tmp_path / "w.pt"), trainable=["fc"])


def test_freezing_is_refused_when_the_weights_are_random() -> None:
    with pytest.raises(ValidationError, match=r"trainable: head would freeze random weights; set train.weights, too"):
        TorchTraining(trainable="head")


def test_published_weights_are_read_when_they_have_been_downloaded(
    fit: Fit, small: Small, state_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models import ShuffleNet_V2_X0_5_Weights, shufflenet_v2_x0_5

    torch.manual_seed(0)
    published = shufflenet_v2_x0_5().state_dict()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(published, folder / Path(ShuffleNet_V2_X0_5_Weights.DEFAULT.url).name)
    report = fit(small(), architecture="shufflenet_v2_x0_5", weights="DEFAULT", trainable="head", epochs=1)
    after, started = state_of(report), report.facts.initial_weights
    assert (started.source, started.replaced) == ("DEFAULT", ("fc.weight", "fc.bias"))
    assert all(torch.equal(after[name], published[name]) for name in published if not name.startswith("fc."))


def test_published_weights_are_refused_with_their_address_when_there_is_no_network(
    fit: Fit, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = small()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # the port that discards: nothing listens
    with pytest.raises(StageError, match=r"IMAGENET1K_V1 cannot be downloaded .*Fix: download https://\S+\.pth elsew"):
        fit(splits, architecture="shufflenet_v2_x0_5", weights="IMAGENET1K_V1")
    with pytest.raises(StageError, match=r"V9: neither a file .* nor weights of shufflenet_v2_x0_5; available: IMAGEN"):
        fit(splits, architecture="shufflenet_v2_x0_5", weights="ShuffleNet_V2_X0_5_Weights.V9")
    with pytest.raises(StageError, match=r"no published weights for resnet18 .*own is torchvision/resnet18"):
        fit(splits, architecture="resnet18", weights="DEFAULT")
