"""The detector learns boxes and the segmenter masks, repeatably; what has not learned fails the gate."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from frameworks.torch.dense_training import AveragedLoop, DenseTraining
from frameworks.torch.detector import STRIDE, assign_targets, cell_centers, detection_loss
from frameworks.torch.network import load_network, run_network
from frameworks.torch.segmenter import segmentation_loss
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.problems import problem_of
from gauntlet.runtime.session import open_session
from tasks.data import DataFacts, data
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.export import export
from tasks.train import train
from tasks.train.facts import TrainFacts
from wings.datasets.digit_scenes import DigitScenes

pytestmark = pytest.mark.slow
IMAGES = {"train_images": 48, "validation_images": 10, "calibration_images": 10, "test_images": 16}


@dataclass(frozen=True)
class Scenes:
    """The data stage's report, and the store with its splits."""

    store: Store
    report: Report[DataFacts]

    def fit(self, folder: Path, **settings: object) -> Report[TrainFacts]:
        """Train on the scenes; the folder holds the checkpoint."""
        folder.mkdir(exist_ok=True)
        learning = DenseTraining.model_validate({"epochs": 1, "batch_size": 16} | settings)
        space, signature = Workspace(self.store, folder), self.report.facts.signature
        return train(learning, space, splits=self.report.artifacts, signature=signature)


def prepare_scenes(folder: Path, **settings: object) -> Scenes:
    config = DigitScenes.model_validate({"image_size": 48, "digit_size": (16, 24)} | IMAGES | settings)
    store = Store(folder / "store")
    return Scenes(store, data(config, Workspace(store, folder)))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return prepare_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def fitted(prepared: Scenes, tmp_path_factory: pytest.TempPathFactory) -> Report[TrainFacts]:
    return prepared.fit(tmp_path_factory.mktemp("train"), epochs=4)


def test_detector_learns_and_its_loss_falls(prepared: Scenes, fitted: Report[TrainFacts]) -> None:
    fitted.raise_if_blocked()
    history, signature = fitted.facts.history, fitted.facts.signature
    assert history[-1].train_loss < 0.9 * history[0].train_loss
    assert fitted.facts.parameters < 400_000
    assert [spec.shape for spec in signature.outputs] == [("batch", 10, 12, 12), ("batch", 4, 12, 12)]
    golden = Golden.load(prepared.store.path(fitted.artifacts["golden"]))
    with np.load(prepared.store.path(fitted.artifacts["predictions"])) as file:
        predicted, truth = file["test"], file["test_labels"]
    assert np.array_equal(problem_of(signature).predictions_of(golden.test_outputs), predicted)
    assert predicted.shape == (16, 100, 6)
    assert truth.shape[0] == 16


def test_interrupted_training_ends_at_the_same_weights(
    prepared: Scenes, fitted: Report[TrainFacts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, calls = AveragedLoop._validate, []

    def interrupted(loop: AveragedLoop) -> tuple[float, float]:
        calls.append(loop)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return validate(loop)

    monkeypatch.setattr(AveragedLoop, "_validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared.fit(tmp_path / "train", epochs=4)
    resumed = prepared.fit(tmp_path / "train", epochs=4)
    assert len(calls) == 3 + 2  # two epochs are not repeated
    assert resumed.artifacts["golden"] == fitted.artifacts["golden"]
    assert resumed.facts.history == fitted.facts.history
    assert prepared.fit(tmp_path / "other", seed=1).facts.history[0] != fitted.facts.history[0]


def test_detector_that_has_hardly_learned_fails_the_gate(
    prepared: Scenes, fitted: Report[TrainFacts], tmp_path: Path
) -> None:
    space, signature = Workspace(prepared.store, tmp_path), fitted.facts.signature
    predictions, splits = fitted.artifacts["predictions"], prepared.report.artifacts
    judged = evaluate(EvaluateConfig(min_score=0.9), space, predictions=predictions, signature=signature, splits=splits)
    assert judged.artifacts.keys() == {"drawings"}
    assert "evaluate.min_score" in [check.name for check in judged.failures]
    assert (judged.facts.metric, set(judged.facts.scores)) == ("map", {"map", "map_50"})


def test_exported_detector_has_scores_and_distances_apart(
    prepared: Scenes, fitted: Report[TrainFacts], tmp_path: Path
) -> None:
    made, space = fitted.artifacts, Workspace(prepared.store, tmp_path)
    signature = fitted.facts.signature
    exported = export(TorchScript(), space, model=made["model"], signature=signature, golden=made["golden"])
    session = open_session(prepared.store.path(exported.artifacts["model"]))
    real = Golden.load(prepared.store.path(made["golden"])).real
    for size in (1, 2, 3, 7):
        outputs = session.run(["scores", "distances"], {"input": real.inputs["input"][:size]})
        for output, name in zip(outputs, ("scores", "distances"), strict=True):
            np.testing.assert_allclose(output, real.outputs[name][:size], atol=1e-4)


def test_data_without_boxes_is_refused(prepared: Scenes, tmp_path: Path) -> None:
    digits, space = Digits(image_size=8), Workspace(prepared.store, tmp_path)
    splits = {name: space.store_file(split.save(tmp_path, name)) for name, split in digits.load().splits.items()}
    with pytest.raises(StageError, match="torch-dense learns boxes or masks; the data's labels are for classification"):
        train(DenseTraining(), space, splits=splits, signature=digits.load().signature)


def test_image_size_that_the_grid_does_not_fit_is_refused(prepared: Scenes, tmp_path: Path) -> None:
    signature = prepared.report.facts.signature
    odd = signature.replace(inputs=(signature.inputs[0].replace(shape=("batch", 3, 48, 52)),))
    with pytest.raises(StageError, match=r"multiples of 8; the data has 48x52 pixels. Fix: change data.image_size"):
        train(DenseTraining(), Workspace(prepared.store, tmp_path), splits=prepared.report.artifacts, signature=odd)


def test_cell_learns_the_smallest_object_around_it() -> None:
    truth = torch.tensor([[[0.0, 0, 36, 36, 1, 1], [16, 16, 24, 24, 2, 1], [0, 0, 0, 0, -1, 0], [4, 30, 12, 38, 0, 0]]])
    targets = assign_targets(truth, cell_centers(10, 10))
    classes = torch.where(targets.positive, targets.classes, -1).reshape(10, 10)
    assert set(classes[4:6, 4:6].flatten().tolist()) == {2}  # both are here
    assert classes[3, 3] == 1  # of the small one, this is outside
    assert classes[8, 2] == -1  # what does not count is not learned
    assert (classes >= 0).sum() == 9


def test_loss_is_smallest_for_outputs_that_say_the_truth() -> None:
    truth = torch.tensor([[[8.0, 8, 24, 24, 1, 1]]])
    targets = assign_targets(truth, cell_centers(8, 8))
    place = cell_centers(8, 8)
    edges = torch.stack([place[:, 0] - 8, place[:, 1] - 8, 24 - place[:, 0], 24 - place[:, 1]], dim=1).clamp(min=0.1)
    distances = (edges / STRIDE).log().T.reshape(1, 4, 8, 8)
    scores = torch.full((1, 3, 64), -12.0)
    scores[0, 1, targets.positive[0]] = 12
    scores = scores.reshape(1, 3, 8, 8)
    right = float(detection_loss(scores, distances, truth))
    assert right < 1e-3
    assert float(detection_loss(scores, distances + 0.5, truth)) > right + 0.1
    assert float(detection_loss(-scores, distances, truth)) > right + 0.1
    assert np.isfinite(float(detection_loss(scores, distances, torch.zeros(1, 0, 6))))


@pytest.fixture(scope="module")
def prepared_masks(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return prepare_scenes(tmp_path_factory.mktemp("scenes"), truth="masks")


@pytest.fixture(scope="module")
def fitted_segmenter(prepared_masks: Scenes, tmp_path_factory: pytest.TempPathFactory) -> Report[TrainFacts]:
    return prepared_masks.fit(tmp_path_factory.mktemp("train"), epochs=3)


def test_segmenter_learns_and_its_loss_falls(prepared_masks: Scenes, fitted_segmenter: Report[TrainFacts]) -> None:
    fitted_segmenter.raise_if_blocked()
    history, signature = fitted_segmenter.facts.history, fitted_segmenter.facts.signature
    assert history[-1].train_loss < 0.9 * history[0].train_loss
    assert fitted_segmenter.facts.parameters < 500_000
    assert [spec.shape for spec in signature.outputs] == [("batch", 11, 48, 48)]
    assert signature.labels[:2] == ("background", "0")
    with np.load(prepared_masks.store.path(fitted_segmenter.artifacts["predictions"])) as file:
        assert file["test"].shape == file["test_labels"].shape == (16, 48, 48)


def test_training_sees_other_colors_where_they_are_asked_for(
    prepared_masks: Scenes, fitted_segmenter: Report[TrainFacts], tmp_path: Path
) -> None:
    recolored = prepared_masks.fit(tmp_path, epochs=3, augment={"recolor": True})
    assert recolored.facts.history[0].train_loss != fitted_segmenter.facts.history[0].train_loss
    assert recolored.facts.history[-1].train_loss < recolored.facts.history[0].train_loss
    with pytest.raises(ValidationError, match="flip"):  # the masks would not turn with the images
        DenseTraining(augment={"flip": True})


def test_exported_and_stored_segmenters_compute_what_was_recorded(
    prepared_masks: Scenes, fitted_segmenter: Report[TrainFacts], tmp_path: Path
) -> None:
    made, space = fitted_segmenter.artifacts, Workspace(prepared_masks.store, tmp_path)
    exported = export(
        TorchScript(), space, model=made["model"], signature=fitted_segmenter.facts.signature, golden=made["golden"]
    )
    real = Golden.load(prepared_masks.store.path(made["golden"])).real
    session = open_session(prepared_masks.store.path(exported.artifacts["model"]))
    for size in (1, 2, 3, 7):
        [scores] = session.run(["scores"], {"input": real.inputs["input"][:size]})
        np.testing.assert_allclose(scores, real.outputs["scores"][:size], atol=1e-3)
    network, _ = load_network(prepared_masks.store.path(made["model"]))
    np.testing.assert_allclose(run_network(network, [real.inputs["input"]])[0], real.outputs["scores"], atol=1e-4)


def test_loss_is_smallest_for_scores_that_say_the_truth_and_ignores_what_does_not_count() -> None:
    truth = torch.zeros(2, 6, 6, dtype=torch.int64)
    truth[:, 2:4] = 1
    scores = 20 * torch.nn.functional.one_hot(truth, 3).movedim(3, 1).float()
    assert float(segmentation_loss(scores, truth)) < 1e-3
    assert float(segmentation_loss(-scores, truth)) > 1
    ignored = truth.clone()
    ignored[:, 4:] = 255
    noisy = scores.clone()
    noisy[:, :, 4:] = torch.randn(2, 3, 2, 6)
    assert float(segmentation_loss(noisy, ignored)) < 1e-3
    assert float(segmentation_loss(noisy, torch.full_like(truth, 255))) == 0


def test_loss_is_cross_entropy_and_half_of_the_dice_loss() -> None:
    random = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 4, (2, 6, 5), generator=random)
    scores = torch.randn(2, 5, 6, 5, generator=random)  # the last class does not occur
    shares, wanted = scores.softmax(1)[:, :4], torch.nn.functional.one_hot(truth, 4).movedim(3, 1)
    both, sizes = (shares * wanted).sum((0, 2, 3)), (shares + wanted).sum((0, 2, 3))
    dice = (1 - 2 * both / sizes).mean()
    expected = torch.nn.functional.cross_entropy(scores, truth) + 0.5 * dice
    torch.testing.assert_close(segmentation_loss(scores, truth), expected)
