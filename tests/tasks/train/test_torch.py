"""Training: repeatable, honest about its loss, and the best epoch is the one that is kept."""

import logging
from collections.abc import Callable

import numpy as np
import pytest

from tasks.artifact import Artifact
from tasks.data.golden import Golden
from tasks.report import Report
from tasks.sources import torch as source
from tasks.train.facts import TrainFacts
from tasks.workspace import Workspace

Fit = Callable[..., Report[TrainFacts]]
Small = Callable[..., dict[str, Artifact]]


def test_train_has_the_same_digests_when_the_seed_is_the_same(fit: Fit, small: Small) -> None:
    splits = small()
    first, again, other = fit(splits), fit(splits), fit(splits, seed=1)
    assert first.artifacts == again.artifacts
    assert first.facts == again.facts
    assert first.artifacts["model"].sha256 != other.artifacts["model"].sha256


def test_train_learns_and_keeps_the_best_epoch_when_it_is_left_alone(
    fit: Fit, small: Small, workspace: Callable[..., Workspace]
) -> None:
    report = fit(small(), epochs=6)
    report.enforce()
    history = report.facts.history
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1].train_loss < 0.8 * history[0].train_loss
    losses = [epoch.validation_loss for epoch in history]
    assert losses[report.facts.best_epoch - 1] == min(losses)
    assert history[-1].learning_rate == pytest.approx(0, abs=1e-9)
    assert not report.facts.stopped_early
    with np.load(workspace().path(report.artifacts["predictions"])) as file:
        right = np.mean(file["validation"].argmax(1) == file["validation_labels"])
    assert right == history[report.facts.best_epoch - 1].validation_accuracy


def test_train_saves_what_the_network_answers_when_it_ends(
    fit: Fit, small: Small, workspace: Callable[..., Workspace]
) -> None:
    out = workspace()
    report = fit(small(), output_name="scores")
    network, signature = source.load(out.path(report.artifacts["model"]))
    golden = Golden.load(out.path(report.artifacts["golden"]))
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert {name: file[name].shape for name in ("train", "validation", "test")} == {
            "train": (193, 10),
            "validation": (60, 10),
            "test": (40, 10),
        }
        assert np.array_equal(file["test"], golden.outputs["scores"])
        assert np.array_equal(file["test_labels"], golden.labels)
    assert np.array_equal(source.predict(network, golden.inputs["input"]), golden.outputs["scores"])
    assert signature.outputs[0].name == "scores"
    assert report.facts.parameters == sum(p.numel() for p in network.parameters())


def test_train_stops_early_when_the_loss_does_not_fall(fit: Fit, small: Small) -> None:
    report = fit(small(), epochs=30, patience=2, learning_rate=1e-12)
    flat = report.facts
    losses = [epoch.validation_loss for epoch in flat.history]
    assert flat.stopped_early
    assert len(losses) == flat.best_epoch + 2 < 30
    assert all(loss > losses[flat.best_epoch - 1] for loss in losses[flat.best_epoch :])
    report.enforce()


def test_train_does_not_say_stopped_early_when_all_epochs_ran(fit: Fit, small: Small) -> None:
    full = fit(small(), epochs=30, patience=2, learning_rate=1e-12).facts
    same = fit(small(), epochs=len(full.history), patience=2, learning_rate=1e-12).facts
    assert len(same.history) == len(full.history)
    assert (full.stopped_early, same.stopped_early) == (True, False)


def failing_loss(report: Report[TrainFacts]) -> float:
    (check,) = report.failures
    assert check.name == "train.loss"
    assert "lower train.learning_rate" in check.remedy
    assert report.artifacts == {}
    return check.value


def test_train_fails_its_check_when_the_learning_rate_is_absurd(fit: Fit, small: Small) -> None:
    assert not np.isfinite(failing_loss(fit(small(), learning_rate=1e9, epochs=2)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_train_fails_its_check_when_training_images_are_not_finite(fit: Fit, small: Small, value: float) -> None:
    def damage(name: str, inputs: np.ndarray) -> None:
        if name == "train":
            inputs[7, 0, 3, 3] = value

    report = fit(small(damage))
    assert not np.isfinite(failing_loss(report))
    assert report.failures[0].detail == "epoch 1, training images"
    assert (report.facts.history, report.facts.best_epoch) == ((), 0)


def test_train_fails_its_check_when_only_validation_images_are_not_finite(fit: Fit, small: Small) -> None:
    def damage(name: str, inputs: np.ndarray) -> None:
        if name == "validation":
            inputs[7] = np.nan

    report = fit(small(damage), patience=2)
    assert np.isnan(failing_loss(report))
    assert report.failures[0].detail == "epoch 2, validation images"
    assert report.facts.best_epoch == 0
    assert all(np.isfinite(epoch.train_loss) for epoch in report.facts.history)


def test_train_says_how_far_it_is_when_it_runs(fit: Fit, small: Small, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gauntlet.progress"), caplog.at_level(logging.INFO, "gauntlet-steps"):
        report = fit(small(), epochs=2)
    steps = [r for r in caplog.records if getattr(r, "unit", "") == "epoch"]
    assert [(r.done, r.total) for r in steps] == [(1, 2), (2, 2)]
    assert [r.metrics["validation_loss"] for r in steps] == [e.validation_loss for e in report.facts.history]
    batches = [r for r in caplog.records if getattr(r, "unit", "") == "batch"]
    assert [r.done for r in batches] == list(range(1, 9))  # 193 images by 64 are 4 steps an epoch


@pytest.mark.parametrize("architecture", ["small-cnn", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_network_answers_one_row_an_image_when_built(architecture: source.Architecture) -> None:
    network = source.build(architecture, channels=1, classes=7)
    assert source.predict(network, np.zeros((3, 1, 16, 16), np.float32), batch_size=2).shape == (3, 7)
