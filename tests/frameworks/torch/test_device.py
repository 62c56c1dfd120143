"""Where a network is trained: on a GPU as on the CPU, and refused in one sentence where there is none."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from frameworks.torch.dense_training import DenseTraining
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.resources import has_gpu
from tasks.data import data
from tasks.train import train
from tasks.train.facts import TrainFacts
from wings.datasets.digit_scenes import DigitScenes

Fit = Callable[..., Report[TrainFacts]]
Small = Callable[..., dict[str, Artifact]]


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
