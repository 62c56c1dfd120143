"""Where a network is trained: on a GPU as on the CPU, and refused in one sentence where there is none."""

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digit_scenes import DigitScenes
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.frameworks.flax.network import GPU_PLUGINS
from gauntlet.runtime.gpu import has_gpu
from tasks.data import data
from tasks.train import train
from tasks.train.facts import TrainFacts
from tasks.train.flax import FlaxTraining
from tasks.train.keras import KerasTraining
from tasks.train.torch_detection import TorchDetection

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


def test_cuda_is_refused_by_jax_where_there_is_no_gpu(workspace: Callable[..., Workspace]) -> None:
    if has_gpu() and any(map(importlib.util.find_spec, GPU_PLUGINS)):
        pytest.skip("JAX has a GPU, so nothing is refused")
    dataset = Digits(image_size=8, layout="NHWC").load()
    training = FlaxTraining(epochs=1, widths=(4,), device="cuda")
    with pytest.raises(StageError, match=r"device: cuda, but JAX \S+ finds no GPU here. .*pip install 'jax\[cuda13\]'"):
        training.fit(dataset.splits, dataset.signature, workspace())


def test_cuda_is_refused_by_keras_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match=r"Keras trains on the CPU here, .*allowed: auto, cpu"):
        KerasTraining(device="cuda")


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
            TorchDetection(epochs=2, batch_size=16, device=device),
            workspace(),
            splits=loaded.artifacts,
            signature=loaded.facts.signature,
        )
        for device in ("cuda", "cpu")
    ]
    assert np.allclose(losses_of(reports[0]), losses_of(reports[1]), rtol=0.05)


@pytest.mark.gpu
def test_flax_network_trains_on_a_gpu_as_on_the_cpu(workspace: Callable[..., Workspace]) -> None:
    on_gpu()
    if not any(map(importlib.util.find_spec, GPU_PLUGINS)):
        pytest.skip("JAX's plug-in for NVIDIA GPUs is not installed")
    dataset = Digits(image_size=8, layout="NHWC").load()
    reports = [
        FlaxTraining(epochs=2, widths=(8, 16), device=device).fit(dataset.splits, dataset.signature, workspace())
        for device in ("cuda", "cpu")
    ]
    assert losses_of(reports[0]) != losses_of(reports[1])
    assert np.allclose(losses_of(reports[0]), losses_of(reports[1]), rtol=0.02)
