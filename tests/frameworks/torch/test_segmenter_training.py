"""The segmenter learns masks; what it has not learned fails the gate; data of another kind is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scene_training import Scenes, prepare_scenes

from frameworks.torch.dense_training import DenseTraining
from frameworks.torch.network import load_network, run_network
from frameworks.torch.segmentation_loss import segmentation_loss
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.session import open_session
from tasks.export import export
from tasks.train.facts import TrainFacts


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return prepare_scenes(tmp_path_factory.mktemp("scenes"), truth="masks")


@pytest.fixture(scope="module")
def fitted(prepared: Scenes, tmp_path_factory: pytest.TempPathFactory) -> Report[TrainFacts]:
    return prepared.fit(tmp_path_factory.mktemp("train"), epochs=3)


def test_segmenter_learns_and_its_loss_falls(prepared: Scenes, fitted: Report[TrainFacts]) -> None:
    fitted.raise_if_blocked()
    history, signature = fitted.facts.history, fitted.facts.signature
    assert history[-1].train_loss < 0.9 * history[0].train_loss
    assert fitted.facts.parameters < 500_000
    assert [spec.shape for spec in signature.outputs] == [("batch", 11, 48, 48)]
    assert signature.labels[:2] == ("background", "0")
    with np.load(prepared.store.path(fitted.artifacts["predictions"])) as file:
        assert file["test"].shape == file["test_labels"].shape == (16, 48, 48)


def test_training_sees_other_colors_where_they_are_asked_for(
    prepared: Scenes, fitted: Report[TrainFacts], tmp_path: Path
) -> None:
    recolored = prepared.fit(tmp_path, epochs=3, augment={"recolor": True})
    assert recolored.facts.history[0].train_loss != fitted.facts.history[0].train_loss
    assert recolored.facts.history[-1].train_loss < recolored.facts.history[0].train_loss
    with pytest.raises(ValidationError, match="flip"):  # the masks would not turn with the images
        DenseTraining(augment={"flip": True})


def test_exported_and_stored_segmenters_compute_what_was_recorded(
    prepared: Scenes, fitted: Report[TrainFacts], tmp_path: Path
) -> None:
    made, space = fitted.artifacts, Workspace(prepared.store, tmp_path)
    exported = export(
        TorchScript(), space, model=made["model"], signature=fitted.facts.signature, golden=made["golden"]
    )
    real = Golden.load(prepared.store.path(made["golden"])).real
    session = open_session(prepared.store.path(exported.artifacts["model"]))
    for size in (1, 2, 3, 7):
        [scores] = session.run(["scores"], {"input": real.inputs["input"][:size]})
        np.testing.assert_allclose(scores, real.outputs["scores"][:size], atol=1e-3)
    network, _ = load_network(prepared.store.path(made["model"]))
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
