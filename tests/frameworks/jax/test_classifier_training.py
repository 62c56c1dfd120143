"""Flax training: repeatable, honest about its loss, the best epoch is kept, and a restart ends at the same weights."""

import importlib.util
import logging
import os
from collections.abc import Callable

import numpy as np
import pytest
from few_samples import ended_after, failing_loss, few_samples, not_finite

from frameworks.jax import network as flax_network
from frameworks.jax.classifier_training import FlaxTraining
from frameworks.jax.network import GPU_PLUGINS
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit, Dataset
from gauntlet.runtime.resources import has_gpu
from tasks.train.facts import TrainFacts

pytestmark = pytest.mark.slow
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # compiling takes longer here than computing
SIZES = {"train": 131, "validation": 60, "calibration": 10, "test": 40}  # 131: the last step of an epoch is not full
TINY = {"widths": (6,), "epochs": 3, "batch_size": 32, "learning_rate": 0.02}
Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits(image_size=8, layout="NHWC").load()


@pytest.fixture
def fit(digits: Dataset, workspace: Callable[..., Workspace]) -> Fit:
    def run(
        splits: dict[str, ArraySplit] | None = None, out: Workspace | None = None, **config: object
    ) -> Report[TrainFacts]:
        training = FlaxTraining.model_validate(TINY | config)
        return training.fit(splits or few_samples(digits, SIZES), digits.signature, out or workspace())

    return run


def test_train_learns_keeps_the_best_epoch_and_saves_its_answers(fit: Fit, workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    report = fit(out=out, epochs=6)
    report.raise_if_blocked()
    facts, history = report.facts, report.facts.history
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1].train_loss < 0.9 * history[0].train_loss
    losses = [epoch.validation_loss for epoch in history]
    assert losses[facts.best_epoch - 1] == min(losses)
    assert history[-1].learning_rate == pytest.approx(0, abs=1e-9)
    assert history[0].learning_rate == pytest.approx(0.02 * (1 + np.cos(np.pi / 6)) / 2)
    assert not facts.stopped_early
    network, recipe = flax_network.load(out.path(report.artifacts["model"]))
    golden = Golden.load(out.path(report.artifacts["golden"]))
    scores = flax_network.scores_function(network, recipe)(
        flax_network.split_state(network), golden.real.inputs["input"]
    )
    assert np.array_equal(scores, golden.real.outputs["logits"])
    assert (facts.signature.primary_output, facts.signature.outputs[0].shape) == ("logits", ("batch", 10))
    assert facts.parameters == 3 * 9 * 6 + 2 * 6 + 6 * 10 + 10
    with np.load(out.path(report.artifacts["predictions"])) as file:
        right = np.mean(file["validation"] == file["validation_labels"])
        assert np.array_equal(file["test"], golden.test_outputs["logits"].argmax(1))
        assert np.array_equal(file["validation_scores"].argmax(1), file["validation"])
    assert right == history[facts.best_epoch - 1].validation_accuracy


def test_train_fails_its_check_when_training_images_are_not_finite(fit: Fit, digits: Dataset) -> None:
    report = fit(few_samples(digits, SIZES, not_finite("train")))
    assert np.isnan(failing_loss(report))
    assert report.failures[0].detail == "epoch 1, training samples"
    assert (report.facts.history, report.facts.best_epoch) == ((), 0)


def test_train_goes_on_and_ends_at_the_same_weights_when_stopped_twice(
    fit: Fit, workspace: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    out, whole = workspace(), fit()
    for epoch in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            fit(out=ended_after(epoch, out))
        (out.folder / "checkpoint.tmp").write_bytes(b"half a checkpoint, as a kill may leave it")
    caplog.clear()
    with caplog.at_level(logging.INFO, "gauntlet.progress"):
        last = fit(out=out)
    assert [r.done for r in caplog.records if getattr(r, "unit", "") == "epoch"] == [3]  # none is done twice
    assert last.facts == whole.facts
    assert last.artifacts == whole.artifacts
    assert fit(seed=1).artifacts["model"] != whole.artifacts["model"]


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
