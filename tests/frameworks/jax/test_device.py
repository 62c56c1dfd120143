"""Where a Flax network is trained: on a GPU as on the CPU, and refused in one sentence where there is none."""

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest

from frameworks.jax.classifier_training import FlaxTraining
from frameworks.jax.network import GPU_PLUGINS
from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.runtime.resources import has_gpu


def has_plugin() -> bool:
    return any(map(importlib.util.find_spec, GPU_PLUGINS))


def test_cuda_is_refused_by_jax_where_there_is_no_gpu(workspace: Callable[..., Workspace]) -> None:
    if has_gpu() and has_plugin():
        pytest.skip("JAX has a GPU, so nothing is refused")
    dataset = Digits(image_size=8, layout="NHWC").load()
    training = FlaxTraining(epochs=1, widths=(4,), device="cuda")
    with pytest.raises(StageError, match=r"device: cuda, but JAX \S+ finds no GPU here. .*pip install 'jax\[cuda13\]'"):
        training.fit(dataset.splits, dataset.signature, workspace())


@pytest.mark.gpu
def test_flax_network_trains_on_a_gpu_as_on_the_cpu(workspace: Callable[..., Workspace]) -> None:
    if not (has_gpu() and has_plugin()):
        pytest.skip("no NVIDIA GPU, or JAX's plug-in for it is not installed")
    dataset = Digits(image_size=8, layout="NHWC").load()
    reports = [
        FlaxTraining(epochs=2, widths=(8, 16), device=device).fit(dataset.splits, dataset.signature, workspace())
        for device in ("cuda", "cpu")
    ]
    gpu, cpu = ([epoch.validation_loss for epoch in report.facts.history] for report in reports)
    assert gpu != cpu
    assert np.allclose(gpu, cpu, rtol=0.02)
