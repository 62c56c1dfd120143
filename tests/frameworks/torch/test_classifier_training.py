"""Training: repeatable, honest about its loss, on a GPU as on the CPU, and the best epoch is the one that is kept."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from few_samples import ended_after, failing_loss, not_finite

from frameworks.torch import network as torch_network
from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.dense_training import DenseTraining
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels
from gauntlet.runtime.resources import has_gpu
from tasks.data import data
from tasks.train import train
from tasks.train.facts import TrainFacts
from wings.datasets.digit_scenes import DigitScenes

Fit = Callable[..., Report[TrainFacts]]
Small = Callable[..., dict[str, Artifact]]


def test_train_learns_and_keeps_the_best_epoch_when_it_is_left_alone(
    fit: Fit, small: Small, workspace: Callable[..., Workspace]
) -> None:
    report = fit(small(), epochs=6)
    report.raise_if_blocked()
    history = report.facts.history
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1].train_loss < 0.8 * history[0].train_loss
    assert all(0 <= epoch.train_accuracy <= 1 for epoch in history)
    assert history[-1].train_accuracy > history[0].train_accuracy
    losses = [epoch.validation_loss for epoch in history]
    assert losses[report.facts.best_epoch - 1] == min(losses)
    assert history[-1].learning_rate == pytest.approx(0, abs=1e-9)
    assert not report.facts.stopped_early
    with np.load(workspace().path(report.artifacts["predictions"])) as file:
        right = np.mean(file["validation"] == file["validation_labels"])
    assert right == history[report.facts.best_epoch - 1].validation_accuracy


def test_train_saves_what_the_network_answers_when_it_ends(
    fit: Fit, small: Small, workspace: Callable[..., Workspace]
) -> None:
    out = workspace()
    splits = small()
    report = fit(splits)
    network, example = torch_network.load_network(out.path(report.artifacts["model"]))
    signature = report.facts.signature
    golden = Golden.load(out.path(report.artifacts["golden"]))
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert {name: file[name].shape for name in ("train", "validation", "test")} == {
            "train": (40,),  # a sample, as large as the test split
            "validation": (60,),
            "test": (40,),
        }
        evenly = np.linspace(0, 192, 40).round().astype(int)
        assert np.array_equal(file["train_labels"], require_labels(read_split(out.path(splits["train"])))[evenly])
        assert np.array_equal(file["test"], golden.test_outputs["logits"].argmax(1))
        assert np.array_equal(file["test_scores"], golden.test_outputs["logits"])
        assert np.array_equal(file["validation_scores"].argmax(1), file["validation"])
        assert np.array_equal(file["test_labels"], golden.labels)
    assert np.array_equal(torch_network.predict(network, golden.real.inputs["input"]), golden.real.outputs["logits"])
    assert np.array_equal(example["input"], golden.real.inputs["input"][:2])
    assert (signature.outputs[0].name, signature.primary_output) == ("logits", "logits")
    assert report.facts.parameters == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_train_fails_its_check_when_training_images_are_not_finite(fit: Fit, small: Small, value: float) -> None:
    report = fit(small(not_finite("train", value)))
    assert not np.isfinite(failing_loss(report))
    assert report.failures[0].detail == "epoch 1, training samples"
    assert (report.facts.history, report.facts.best_epoch) == ((), 0)


def test_train_fails_its_check_when_only_validation_images_are_not_finite(fit: Fit, small: Small) -> None:
    report = fit(small(not_finite("validation")), patience=2)
    assert np.isnan(failing_loss(report))
    assert report.failures[0].detail == "epoch 2, validation samples"
    assert report.facts.best_epoch == 0
    assert all(np.isfinite(epoch.train_loss) for epoch in report.facts.history)


def test_learning_rate_rises_in_the_warmup_and_then_falls(fit: Fit, small: Small) -> None:
    rates = [epoch.learning_rate for epoch in fit(small(), epochs=4, warmup=0.5, learning_rate=0.01).facts.history]
    assert rates[1] == pytest.approx(0.01)
    assert rates[0] < rates[1] > rates[2] > rates[3]


def test_train_says_how_far_it_is_when_it_runs(fit: Fit, small: Small, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gauntlet.progress"), caplog.at_level(logging.INFO, "gauntlet-steps"):
        report = fit(small(), epochs=2)
    steps = [r for r in caplog.records if getattr(r, "unit", "") == "epoch"]
    assert [(r.done, r.total) for r in steps] == [(1, 2), (2, 2)]
    assert [r.metrics["validation_loss"] for r in steps] == [e.validation_loss for e in report.facts.history]
    batches = [r for r in caplog.records if getattr(r, "unit", "") == "batch"]
    assert [r.done for r in batches] == list(range(1, 9))  # 193 images by 64 are 4 steps an epoch


def test_train_takes_a_torchvision_model_when_it_is_named(fit: Fit, small: Small) -> None:
    report = fit(small(), architecture="shufflenet_v2_x0_5", epochs=1)
    report.raise_if_blocked()
    assert report.facts.architecture == "shufflenet_v2_x0_5"
    assert report.facts.signature.outputs[0].shape == ("batch", 10)


def test_train_is_refused_when_the_data_is_no_pictures(digits: Dataset, workspace: Callable[..., Workspace]) -> None:
    signature = digits.signature.replace(
        layout="none", inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 64)),)
    )
    out = workspace()
    split = ArraySplit({"input": np.zeros((20, 64), np.float32)}, np.arange(20) % 10)
    splits = {name: out.store_file(split.save(out.folder, name)) for name in ("train", "validation", "test")}
    with pytest.raises(StageError, match=r"takes images; the data has samples of shape \(64,\).*torch-model"):
        train(TorchTraining(architecture="small-cnn"), out, splits=splits, signature=signature)


def test_train_answers_at_other_sizes_when_they_are_asked(
    fit: Fit, small: Small, workspace: Callable[..., Workspace]
) -> None:
    report = fit(small(), input_sizes=[(16, 12)])
    golden = Golden.load(workspace().path(report.artifacts["golden"]))
    assert report.facts.signature.inputs[0].shape == ("batch", 3, "height", "width")
    case = golden.cases["16x12"]
    assert case.inputs["input"].shape == (16, 3, 16, 12)
    assert case.outputs["logits"].shape == (16, 10)
    assert np.array_equal(case.inputs["input"][:, :, ::2, :8:3], golden.real.inputs["input"][:16, :, :, :6:2])


def test_train_sees_changed_pictures_when_they_are_augmented(fit: Fit, small: Small) -> None:
    plain, moved, again = fit(small()), *(fit(small(), augment={"crop_padding": 2, "flip": True}) for _ in range(2))
    assert moved.artifacts == again.artifacts
    assert moved.artifacts["model"].sha256 != plain.artifacts["model"].sha256
    assert moved.facts.history[0].train_loss != plain.facts.history[0].train_loss
    assert fit(small(), augment={}).artifacts == plain.artifacts  # nothing is moved and nothing mirrored


def test_train_takes_pictures_with_channels_last_when_the_data_has_them(
    digits: Dataset, workspace: Callable[..., Workspace]
) -> None:
    signature = digits.signature.replace(
        layout="NHWC", inputs=(TensorSpec(name="input", dtype="uint8", shape=("batch", 8, 8, 3)),)
    )
    out, rng = workspace(), np.random.default_rng(0)
    split = ArraySplit({"input": rng.integers(0, 255, (40, 8, 8, 3)).astype(np.uint8)}, np.arange(40) % 10)
    splits = {name: out.store_file(split.save(out.folder, name)) for name in ("train", "validation", "test")}
    config = TorchTraining(architecture="small-cnn", epochs=1)
    report = train(config, out, splits=splits, signature=signature)
    report.raise_if_blocked()
    assert report.facts.signature.inputs == (TensorSpec(name="input", dtype="float32", shape=("batch", 8, 8, 3)),)
    network, example = torch_network.load_network(out.path(report.artifacts["model"]))
    assert network(example["input"]).shape == (2, 10)


@pytest.mark.slow
def test_train_ends_at_the_same_weights_when_it_was_interrupted_among_random_layers(
    fit: Fit, workspace: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    config = {"architecture": "mnasnet0_5", "epochs": 2, "augment": {"flip": True}}  # it has dropout
    split, out = ArraySplit({"input": np.random.default_rng(0).random((24, 3, 8, 8))}, np.arange(24) % 10), workspace()
    splits = {name: out.store_file(split.save(out.folder, name)) for name in ("train", "validation", "test")}
    whole, half = fit(splits, **config), workspace()
    with pytest.raises(KeyboardInterrupt):
        fit(splits, ended_after(1, half), **config)
    (half.folder / "checkpoint.tmp").write_bytes(b"half a checkpoint, as a kill may leave it")
    caplog.clear()
    with caplog.at_level(logging.INFO, "gauntlet.progress"):
        assert fit(splits, half, **config).artifacts == whole.artifacts
    assert [r.done for r in caplog.records if getattr(r, "unit", "") == "epoch"] == [2]  # the first is not done again
    assert fit(splits, **config | {"seed": 1}).artifacts["model"] != whole.artifacts["model"]


def on_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no NVIDIA GPU")


def without_gpu() -> None:
    if has_gpu():
        pytest.skip("there is an NVIDIA GPU, so nothing is refused")


def losses_of(report: Report[TrainFacts]) -> list[float]:
    return [epoch.validation_loss for epoch in report.facts.history]


def test_driver_and_pytorch_agree_on_whether_there_is_a_gpu() -> None:
    assert torch.cuda.is_available() <= has_gpu()


def test_auto_trains_as_the_cpu_does_where_there_is_no_gpu(fit: Fit, small: Small) -> None:
    without_gpu()
    splits = small()
    auto, cpu = (fit(splits, device=device, epochs=2) for device in ("auto", "cpu"))
    assert auto.artifacts == cpu.artifacts


def test_cuda_is_refused_with_the_reason_where_there_is_no_gpu(fit: Fit, small: Small) -> None:
    without_gpu()
    with pytest.raises(StageError, match=r"device: cuda, but PyTorch \S+, which is built .*, finds no GPU here. Fix: "):
        fit(small(), device="cuda")


@pytest.mark.gpu
def test_classifier_trained_on_a_gpu_predicts_as_one_trained_on_the_cpu(
    fit: Fit, small: Small, workspace: Callable[..., Workspace]
) -> None:
    on_gpu()
    splits, out = small(), workspace()
    reports = {device: fit(splits, device=device, epochs=4) for device in ("auto", "cuda", "cpu")}
    losses = {device: losses_of(report) for device, report in reports.items()}
    assert losses["auto"] != losses["cpu"]  # auto means the GPU
    assert np.allclose(losses["auto"], losses["cuda"], rtol=0.001)
    assert np.allclose(losses["auto"], losses["cpu"], rtol=0.02)
    scores = {
        device: Golden.load(out.path(report.artifacts["golden"])).test_outputs["logits"]
        for device, report in reports.items()
    }
    assert np.mean(scores["auto"].argmax(1) == scores["cpu"].argmax(1)) > 0.9


@pytest.mark.gpu
def test_detector_trains_on_a_gpu_as_on_the_cpu(workspace: Callable[..., Workspace]) -> None:
    on_gpu()
    sizes = {"train_images": 64, "validation_images": 10, "calibration_images": 10, "test_images": 16}
    loaded = data(DigitScenes.model_validate({"image_size": 48, "digit_size": (16, 24)} | sizes), workspace())
    reports = [
        train(
            DenseTraining(epochs=2, batch_size=16, device=device),
            workspace(),
            splits=loaded.artifacts,
            signature=loaded.facts.signature,
        )
        for device in ("cuda", "cpu")
    ]
    assert np.allclose(losses_of(reports[0]), losses_of(reports[1]), rtol=0.05)
