"""Keras training: repeatable, honest about its loss, the best epoch is kept, and a kill costs no whole epoch."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import HogFeatures
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import ArraySplit, Dataset
from gauntlet.frameworks.keras import files
from gauntlet.frameworks.keras.model import from_network
from tasks.train.facts import TrainFacts
from tasks.train.keras import KerasTraining

SIZES = {"train": 97, "validation": 70, "calibration": 10, "test": 40}  # 97: the last step of an epoch has one image
TINY = {"architecture": "small-cnn", "epochs": 3, "batch_size": 32, "learning_rate": 0.01}
Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture(scope="module")
def digits() -> dict[str, Dataset]:
    return {layout: Digits(image_size=8, layout=layout).load() for layout in ("NHWC", "NCHW")}


def small(data: Dataset, change: Callable[[str, np.ndarray], None] | None = None) -> dict[str, ArraySplit]:
    """Return few samples a split, after `change(name, inputs)` has damaged them."""
    splits = {}
    for name, size in SIZES.items():
        inputs = data.splits[name].take(slice(0, size))["input"].copy()
        if change:
            change(name, inputs)
        splits[name] = ArraySplit({"input": inputs}, data.splits[name].labels[:size])
    return splits


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
        return training.fit(splits or small(data), data.signature, out or workspace())

    return run


def test_train_learns_tells_each_epoch_and_keeps_the_best(
    fit: Fit, workspace: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    out = workspace()
    with caplog.at_level(logging.INFO, "gauntlet.progress"), caplog.at_level(logging.INFO, "gauntlet-steps"):
        report = fit(out=out, epochs=5, output_name="scores")
    report.raise_if_blocked()
    facts, history = report.facts, report.facts.history
    losses = [epoch.validation_loss for epoch in history]
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4, 5]
    assert history[-1].train_loss < 0.8 * history[0].train_loss
    assert history[-1].train_accuracy > history[0].train_accuracy
    assert losses[facts.best_epoch - 1] == min(losses)
    assert (facts.signature.primary_output, facts.signature.outputs[0].shape) == ("scores", ("batch", 10))
    with np.load(out.path(report.artifacts["predictions"])) as file:
        right = np.mean(file["validation"] == file["validation_labels"])
        assert file["train"].shape == file["test"].shape  # a sample, as large
        assert np.array_equal(file["validation_scores"].argmax(1), file["validation"])
    assert right == pytest.approx(history[facts.best_epoch - 1].validation_accuracy, abs=1e-6)
    network = files.load(out.path(report.artifacts["model"]))
    golden = Golden.load(out.path(report.artifacts["golden"]))
    answers = from_network(network).predict(golden.real.inputs, facts.signature)
    np.testing.assert_allclose(next(iter(answers.values())), golden.real.outputs["scores"], atol=1e-6)
    assert facts.parameters == network.count_params()
    steps = [record for record in caplog.records if getattr(record, "unit", "") == "epoch"]
    assert [(record.done, record.total) for record in steps] == [(n, 5) for n in range(1, 6)]
    assert [record.metrics["validation_loss"] for record in steps] == losses
    batches = [record.done for record in caplog.records if getattr(record, "unit", "") == "batch"]
    assert batches == list(range(1, 21))  # 97 images by 32 are 4 steps an epoch


@pytest.mark.slow
def test_train_learns_the_same_when_only_the_layout_differs(fit: Fit) -> None:
    augment = {"crop_padding": 1}
    nhwc, nchw = fit(augment=augment, epochs=2), fit(layout="NCHW", augment=augment, epochs=2)
    losses = [[epoch.train_loss for epoch in report.facts.history] for report in (nhwc, nchw)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # threads add in another order from run to run
    assert nhwc.facts.signature.inputs[0].shape == ("batch", 8, 8, 3)
    assert nchw.facts.signature.inputs[0].shape == ("batch", 3, 8, 8)


@pytest.mark.slow
def test_train_lowers_the_rate_and_stops_early_when_the_loss_does_not_fall(fit: Fit) -> None:
    report = fit(epochs=30, patience=3, learning_rate=1e-12, plateau_factor=0.5, batch_norm_momentum=0.0)
    report.raise_if_blocked()
    facts = report.facts
    assert facts.stopped_early
    assert len(facts.history) == facts.best_epoch + 3 < 30
    waited = [epoch.learning_rate for epoch in facts.history[facts.best_epoch :]]
    assert waited == pytest.approx([waited[0] / 2**n for n in range(3)])


def failing_loss(report: Report[TrainFacts]) -> float:
    (check,) = report.failures
    assert check.name == "train.loss"
    assert "lower train.learning_rate" in check.remedy
    assert report.artifacts == {}
    return check.value


@pytest.mark.slow
def test_train_fails_its_check_when_a_training_image_is_not_finite(fit: Fit, digits: dict[str, Dataset]) -> None:
    def damage(name: str, inputs: np.ndarray) -> None:
        if name == "train":
            inputs[7, 3, 3, 0] = np.nan

    report = fit(small(digits["NHWC"], damage))
    assert not np.isfinite(failing_loss(report))
    assert report.failures[0].detail == "epoch 1, training images"
    assert (report.facts.history, report.facts.best_epoch) == ((), 0)


@pytest.mark.slow
def test_train_fails_its_check_when_the_learning_rate_is_absurd(fit: Fit) -> None:
    assert not np.isfinite(failing_loss(fit(learning_rate=1e30, epochs=4, patience=2)))


@pytest.mark.slow
def test_train_names_the_picture_that_cannot_be_read_any_more(
    workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for name in ("dark", "light"):
        for number in range(20):
            path = tmp_path / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 128, (8, 8, 3), np.uint8) + (128 if name == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    data = ImageFolder.model_validate({"path": tmp_path / "pictures", "image_size": 8, "layout": "NHWC"}).load()
    (tmp_path / "pictures" / data.splits["train"].files[3]).unlink()
    with pytest.raises(StageError, match=data.splits["train"].files[3]):
        KerasTraining.model_validate(TINY).fit(data.splits, data.signature, workspace())


def test_train_refuses_vectors_in_one_sentence(workspace: Callable[..., Workspace]) -> None:
    data = Digits(image_size=8, hog=HogFeatures(pixels_per_cell=2)).load()
    with pytest.raises(StageError, match="takes images; the data has samples of shape"):
        KerasTraining.model_validate(TINY).fit(data.splits, data.signature, workspace())


SCRIPT = """
import logging, sys, time
from pathlib import Path
from gauntlet.core.artifact import Store
from gauntlet.datasets.splits import read_npz_split
from gauntlet.core.signature import Signature
from tasks.train.keras import KerasTraining
from gauntlet.core.workspace import Workspace
import json

class Tell(logging.Handler):
    def emit(self, record):
        if record.unit == "epoch":
            print(record.done, flush=True)

logging.getLogger("gauntlet.progress").setLevel(logging.INFO)
logging.getLogger("gauntlet.progress").addHandler(Tell())
told = json.loads(sys.argv[1])
splits = {name: read_npz_split(Path(path)) for name, path in told["splits"].items()}
out = Workspace(Store(Path(told["store"])), Path(told["folder"]))
KerasTraining(**told["config"]).fit(splits, Signature(**told["signature"]), out)
"""


@pytest.mark.slow
def test_train_goes_on_and_ends_at_the_same_weights_when_it_was_killed(
    fit: Fit, digits: dict[str, Dataset], workspace: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    config = TINY | {"epochs": 60, "patience": 60, "plateau_patience": 1}
    data, out, kept = digits["NHWC"], workspace(), workspace()
    told = {
        "splits": {name: str(split.save(kept.folder, name)) for name, split in small(data).items()},
        "store": str(out.store.root),
        "folder": str(out.folder),
        "signature": data.signature.model_dump(),
        "config": config,
    }
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, json.dumps(told)], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    child.kill()
    done = 1 + len(child.communicate()[0].split())
    assert child.returncode == -9
    assert 1 <= done < 60
    (out.folder / "best-0060.weights.h5").write_bytes(b"half a file, as a kill may leave it")
    config["epochs"] = done + 3
    with caplog.at_level(logging.INFO, "gauntlet.progress"):
        report = KerasTraining(**config).fit(small(data), data.signature, Workspace(Store(out.store.root), out.folder))
    numbers = [record.done for record in caplog.records if getattr(record, "unit", "") == "epoch"]
    started = numbers[0]
    assert started in (done + 1, done + 2)  # the kill may have come after an epoch was kept and before it was told
    assert numbers == list(range(started, done + 4))  # none is missing, none was done twice
    whole = fit(**config)
    assert report.facts.history == whole.facts.history
    assert report.artifacts["model"] == whole.artifacts["model"]


def test_architecture_is_refused_with_the_nearest_name_when_nobody_knows_it() -> None:
    assert KerasTraining(architecture="EfficientNetB0").architecture == "efficientnetb0"
    with pytest.raises(ValueError, match="did you mean efficientnet"):
        KerasTraining(architecture="efficientnet-b0")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_efficientnet_learns_real_digits_from_scratch(workspace: Callable[..., Workspace]) -> None:
    from configs.loader import load

    training = load("digits-efficientnetb0-keras").train.replace(epochs=2)  # of six; the preset's gate wants 95 %
    data, out = Digits(layout="NHWC").load(), workspace()
    report = training.fit(data.splits, data.signature, out)
    report.raise_if_blocked()
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert np.mean(file["test"] == file["test_labels"]) >= 0.75
