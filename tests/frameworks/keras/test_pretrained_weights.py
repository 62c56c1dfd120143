"""Keras training from given weights: a file or published ones, another head, and frozen layers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from frameworks.keras import files
from frameworks.keras.architectures import KerasNetworkSpec
from frameworks.keras.classifier_training import KerasTraining
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels
from tasks.train.facts import TrainFacts

SIZES = {"train": 480, "validation": 60, "test": 20}
HEAD = ("dense/bias", "dense/kernel")
Fit = Callable[..., Report[TrainFacts]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits(image_size=8, layout="NHWC").load()


@pytest.fixture
def fit(digits: Dataset, workspace: Callable[..., Workspace]) -> Fit:
    """Return a function that trains on the digits below `classes`."""

    def run(classes: int = 10, **config: object) -> Report[TrainFacts]:
        splits = {}
        for name, size in SIZES.items():
            split = digits.splits[name]
            chosen = np.flatnonzero(require_labels(split) < classes)[:size]
            splits[name] = ArraySplit(split.take(chosen), require_labels(split)[chosen])
        values = {"architecture": "small-cnn", "epochs": 4, "learning_rate": 0.02} | config
        signature = digits.signature.replace(labels=digits.signature.labels[:classes])
        return KerasTraining.model_validate(values).fit(splits, signature, workspace())

    return run


@pytest.fixture
def weights_of(workspace: Callable[..., Workspace]) -> Callable[[Report[TrainFacts]], dict[str, np.ndarray]]:
    def read(report: Report[TrainFacts]) -> dict[str, np.ndarray]:
        network = files.load(workspace().path(report.artifacts["model"]))
        return {variable.path: variable.numpy() for variable in network.weights}

    return read


@pytest.mark.nightly
def test_head_learns_other_classes_while_frozen_layers_stay_bit_identical(
    fit: Fit, weights_of, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    half = fit(5, batch_size=16)
    file, before = tmp_path / "half.weights.h5", weights_of(half)
    files.load(workspace().path(half.artifacts["model"])).save_weights(file)
    report = fit(weights=str(file), trainable="head", epochs=8, batch_size=16)
    after, started = weights_of(report), report.facts.initial_weights
    assert (started.source, started.replaced, started.trained_parameters) == (file.name, HEAD, 64 * 10 + 10)
    assert all(np.array_equal(before[name], after[name]) for name in before if name not in HEAD)
    assert after["dense/kernel"].shape == (64, 10)
    assert report.facts.history[report.facts.best_epoch - 1].validation_accuracy > 0.3  # chance is 0.1
    last = weights_of(fit(5, weights=str(file), trainable=2, epochs=1))
    assert {name for name in before if not np.array_equal(before[name], last[name])} == {
        *HEAD,
        *(f"batch_normalization_2/{name}" for name in ("beta", "gamma", "moving_mean", "moving_variance")),
    }


def test_weights_are_refused_when_they_do_not_fit_or_cannot_be_read(fit: Fit, tmp_path: Path) -> None:
    spec = {"architecture": "small-cnn", "classes": 10, "batch_norm_momentum": 0.9}
    other = KerasNetworkSpec.model_validate(spec | {"shape": (8, 8, 1)}).build()
    other.save_weights(tmp_path / "gray.weights.h5")
    with pytest.raises(StageError, match=r"does not fit the network: missing or of another shape: conv2d/kernel. Fix"):
        fit(weights=str(tmp_path / "gray.weights.h5"))
    (tmp_path / "broken.weights.h5").write_bytes(b"hello")
    with pytest.raises(StageError, match=r"Keras cannot read it as weights .*Fix: write it with network.save_weights"):
        fit(weights=str(tmp_path / "broken.weights.h5"))
    with pytest.raises(StageError, match=r"gone.weights.h5: no such file"):
        fit(weights=str(tmp_path / "gone.weights.h5"))
    with pytest.raises(ValidationError, match=r"trainable: head would freeze random weights; set train.weights"):
        KerasTraining(trainable="head")


def test_published_weights_are_refused_with_the_reason_when_there_is_no_network(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path))
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # the port that discards: nothing listens
    spec = {"architecture": "mobilenet", "shape": (32, 32, 3), "classes": 10, "batch_norm_momentum": 0.9}
    network = KerasNetworkSpec.model_validate(spec).build()
    with pytest.raises(StageError, match=r"train.weights: imagenet: Keras cannot provide it for .*URL fetch failure"):
        KerasNetworkSpec.model_validate(spec).load_published(network, "imagenet")
    with pytest.raises(StageError, match=r"no published weights for small-cnn. Fix: name a file"):
        fit(weights="imagenet")


def test_published_weights_are_put_below_a_new_head_when_they_have_been_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frameworks.keras.tensorflow_setup import start_tensorflow

    spec = KerasNetworkSpec(architecture="mobilenet", shape=(32, 32, 3), classes=10, batch_norm_momentum=0.9)
    keras, network = start_tensorflow(), spec.build()
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group

    published = keras.applications.MobileNet(weights=None, include_top=False, input_shape=(32, 32, 3))
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    with h5py.File(tmp_path / "models" / "mobilenet_1_0_224_tf_no_top.h5", "w") as file:
        save_weights_to_hdf5_group(file, published)
    assert spec.load_published(network, "imagenet") == ("conv_preds/bias", "conv_preds/kernel")
    own = {variable.path: variable.numpy() for variable in network.weights}
    assert all(np.array_equal(own[variable.path], variable.numpy()) for variable in published.weights)
