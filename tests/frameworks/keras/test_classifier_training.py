"""Keras training: repeatable, honest about its loss, the best epoch is kept, and a kill costs no whole epoch."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from few_samples import ended_after, failing_loss, few_samples, not_finite
from pydantic import ValidationError

from frameworks.keras import files, training_loop
from frameworks.keras.classifier_training import KerasTraining
from frameworks.keras.model import from_network
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit, Dataset
from tasks.train.facts import TrainFacts

pytestmark = pytest.mark.slow
SIZES = {"train": 97, "validation": 70, "calibration": 10, "test": 40}  # 97: the last step of an epoch has one image
TINY = {"architecture": "small-cnn", "epochs": 3, "batch_size": 32, "learning_rate": 0.01}
Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture(scope="module")
def digits() -> dict[str, Dataset]:
    return {layout: Digits(image_size=8, layout=layout).load() for layout in ("NHWC", "NCHW")}


@pytest.fixture
def fit(digits: dict[str, Dataset], workspace: Callable[..., Workspace]) -> Fit:
    def run(
        splits: dict[str, ArraySplit] | None = None,
        out: Workspace | None = None,
        layout: str = "NHWC",
        **config: object,
    ) -> Report[TrainFacts]:
        data = digits[layout]
        training = KerasTraining.model_validate(TINY | config)
        return training.fit(splits or few_samples(data, SIZES), data.signature, out or workspace())

    return run


def test_train_learns_tells_each_epoch_and_keeps_the_best(
    fit: Fit, workspace: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    out = workspace()
    with caplog.at_level(logging.INFO, "gauntlet.progress"), caplog.at_level(logging.INFO, "gauntlet-steps"):
        report = fit(out=out, epochs=5)
    report.raise_if_blocked()
    facts, history = report.facts, report.facts.history
    losses = [epoch.validation_loss for epoch in history]
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4, 5]
    assert history[-1].train_loss < 0.8 * history[0].train_loss
    assert history[-1].train_accuracy > history[0].train_accuracy
    assert losses[facts.best_epoch - 1] == min(losses)
    assert (facts.signature.primary_output, facts.signature.outputs[0].shape) == ("logits", ("batch", 10))
    with np.load(out.path(report.artifacts["predictions"])) as file:
        right = np.mean(file["validation"] == file["validation_labels"])
        assert file["train"].shape == file["test"].shape  # a sample, as large
        assert np.array_equal(file["validation_scores"].argmax(1), file["validation"])
    assert right == pytest.approx(history[facts.best_epoch - 1].validation_accuracy, abs=1e-6)
    network = files.load(out.path(report.artifacts["model"]))
    golden = Golden.load(out.path(report.artifacts["golden"]))
    answers = from_network(network).predict(golden.real.inputs, facts.signature)
    np.testing.assert_allclose(next(iter(answers.values())), golden.real.outputs["logits"], atol=1e-6)
    assert facts.parameters == network.count_params()
    steps = [record for record in caplog.records if getattr(record, "unit", "") == "epoch"]
    assert [(record.done, record.total) for record in steps] == [(n, 5) for n in range(1, 6)]
    assert [record.metrics["validation_loss"] for record in steps] == losses
    batches = [record.done for record in caplog.records if getattr(record, "unit", "") == "batch"]
    assert batches == list(range(1, 21))  # 97 images by 32 are 4 steps an epoch


@pytest.mark.nightly
def test_train_learns_the_same_when_only_the_layout_differs(fit: Fit) -> None:
    augment = {"crop_padding": 1}
    nhwc, nchw = fit(augment=augment, epochs=2), fit(layout="NCHW", augment=augment, epochs=2)
    losses = [[epoch.train_loss for epoch in report.facts.history] for report in (nhwc, nchw)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # threads add in another order from run to run
    assert nhwc.facts.signature.inputs[0].shape == ("batch", 8, 8, 3)
    assert nchw.facts.signature.inputs[0].shape == ("batch", 3, 8, 8)


def test_train_lowers_the_rate_and_stops_early_when_the_loss_does_not_fall(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frameworks.keras.classifier_training.BATCH_NORM_MOMENTUM", 0.0)
    report = fit(epochs=30, patience=3, learning_rate=1e-12)
    report.raise_if_blocked()
    facts = report.facts
    assert facts.stopped_early
    assert len(facts.history) == facts.best_epoch + 3 < 30
    waited = [epoch.learning_rate for epoch in facts.history[facts.best_epoch :]]
    assert waited == pytest.approx([waited[0] * training_loop.PLATEAU_FACTOR**n for n in range(3)])


def test_train_fails_its_check_when_a_training_image_is_not_finite(fit: Fit, digits: dict[str, Dataset]) -> None:
    report = fit(few_samples(digits["NHWC"], SIZES, not_finite("train")))
    assert not np.isfinite(failing_loss(report))
    assert report.failures[0].detail == "epoch 1, training samples"
    assert (report.facts.history, report.facts.best_epoch) == ((), 0)


@pytest.mark.nightly
def test_train_goes_on_and_ends_at_the_same_weights_when_it_was_stopped(
    fit: Fit, workspace: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    config, out = {"epochs": 4, "patience": 60}, workspace()
    with pytest.raises(KeyboardInterrupt):
        fit(out=ended_after(2, out), **config)
    (out.folder / "best-0060.weights.h5").write_bytes(b"half a file, as a kill may leave it")
    with caplog.at_level(logging.INFO, "gauntlet.progress"):
        report = fit(out=out, **config)
    assert [r.done for r in caplog.records if getattr(r, "unit", "") == "epoch"] == [3, 4]  # none is done twice
    whole = fit(**config)
    assert report.facts.history == whole.facts.history
    assert report.artifacts["model"] == whole.artifacts["model"]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_efficientnet_learns_real_digits_from_scratch(workspace: Callable[..., Workspace]) -> None:
    from configs.loader import load

    training = load("digits-efficientnetb0-keras").train.replace(epochs=2)  # of six; the preset's gate wants 95 %
    data, out = Digits(layout="NHWC").load(), workspace()
    report = training.fit(data.splits, data.signature, out)
    report.raise_if_blocked()
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert np.mean(file["test"] == file["test_labels"]) >= 0.75


def test_train_refuses_an_operator_that_cannot_be_converted_before_the_first_epoch(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keras = start_tensorflow()
    import tensorflow as tf

    class LogGamma(keras.layers.Layer):
        def call(self, images: Any) -> Any:
            return tf.math.lgamma(tf.abs(images) + 1.0)

    def architecture(input_shape: tuple[int, ...], classes: int, **_: object) -> Any:
        pixels = keras.Input(input_shape)
        scores = keras.layers.Dense(classes)(keras.layers.Flatten()(LogGamma()(pixels)))
        return keras.Model(pixels, scores)

    monkeypatch.setattr(keras.applications, "VGG16", architecture)
    with (
        caplog.at_level(logging.INFO, "gauntlet.progress"),
        pytest.raises(StageError, match=r"cannot convert Lgamma\. Fix: use layers without it"),
    ):
        fit(architecture="vgg16")
    assert not caplog.messages


def test_cuda_is_refused_by_keras_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match=r"Keras trains on the CPU here, .*allowed: auto, cpu"):
        KerasTraining(device="cuda")
