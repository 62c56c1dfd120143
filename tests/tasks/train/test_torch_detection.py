"""The detector learns boxes, repeatably, and goes on after a kill where it was; data of another kind is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digit_scenes import DigitScenes
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.frameworks.torch.detection_loop import TorchDetectionLoop
from gauntlet.frameworks.torch.detection_loss import STRIDE, assign_targets, cell_centers, detection_loss
from gauntlet.frameworks.torch.network import load_network, run_network
from gauntlet.problems import problem_of
from tasks.data import data
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.export import export
from tasks.export.torchscript import TorchScript
from tasks.train import train
from tasks.train.facts import TrainFacts
from tasks.train.torch_detection import TorchDetection

SCENES = DigitScenes(
    image_size=48, train_images=64, validation_images=10, calibration_images=10, test_images=16, digit_size=(16, 24)
)
Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture
def fit(workspace: Callable[..., Workspace]) -> Fit:
    def run(
        out: Workspace | None = None, config: DigitScenes | Digits = SCENES, **settings: object
    ) -> Report[TrainFacts]:
        space = out or workspace()
        prepared = data(config, space)
        learning = TorchDetection.model_validate({"epochs": 2} | settings)
        return train(learning, space, splits=prepared.artifacts, signature=prepared.facts.signature)

    return run


def test_detector_learns_and_its_loss_falls(fit: Fit, workspace: Callable[..., Workspace]) -> None:
    space = workspace()
    report = fit(space, epochs=6)
    report.raise_if_blocked()
    history = report.facts.history
    assert history[-1].train_loss < 0.8 * history[0].train_loss
    assert report.facts.parameters < 400_000
    signature = report.facts.signature
    assert [spec.shape for spec in signature.outputs] == [("batch", 10, 12, 12), ("batch", 4, 12, 12)]
    golden = Golden.load(space.path(report.artifacts["golden"]))
    with np.load(space.path(report.artifacts["predictions"])) as file:
        predicted, truth = file["test"], file["test_labels"]
    assert np.array_equal(problem_of(signature).predictions_of(golden.test_outputs), predicted)
    assert predicted.shape == (16, 100, 6)
    assert truth.shape[0] == 16


def test_training_is_repeatable(fit: Fit) -> None:
    first, again, other = fit(), fit(), fit(seed=1)
    assert first.facts == again.facts
    assert first.artifacts["golden"] == again.artifacts["golden"]
    assert first.artifacts["golden"] != other.artifacts["golden"]


def test_interrupted_training_ends_at_the_same_weights(
    fit: Fit, workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, space = fit(epochs=3), workspace()
    validate, calls = TorchDetectionLoop._validate, []

    def interrupted(loop: TorchDetectionLoop) -> tuple[float, float]:
        calls.append(loop)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validate(loop)

    monkeypatch.setattr(TorchDetectionLoop, "_validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(space, epochs=3)
    resumed = fit(space, epochs=3)
    assert len(calls) == 2 + 2  # the first epoch is not repeated
    assert resumed.artifacts["golden"] == whole.artifacts["golden"]
    assert resumed.facts.history == whole.facts.history


def test_untrained_detector_fails_the_gate(fit: Fit, workspace: Callable[..., Workspace]) -> None:
    space = workspace()
    report = fit(space, epochs=1)
    predictions, signature = report.artifacts["predictions"], report.facts.signature
    judged = evaluate(EvaluateConfig(min_score=0.5), space, predictions=predictions, signature=signature)
    assert "evaluate.min_score" in [check.name for check in judged.failures]
    assert (judged.facts.metric, set(judged.facts.scores)) == ("map", {"map", "map_50"})


def test_exported_detector_has_scores_and_distances_apart(fit: Fit, workspace: Callable[..., Workspace]) -> None:
    space = workspace()
    report = fit(space, epochs=1)
    model = report.artifacts["model"]
    exported = export(TorchScript(), space, model=model, signature=report.facts.signature)
    import onnxruntime

    session = onnxruntime.InferenceSession(space.path(exported.artifacts["model"]))
    golden = Golden.load(space.path(report.artifacts["golden"]))
    for size in (1, 2, 3, 7):
        outputs = session.run(None, {"input": golden.real.inputs["input"][:size].astype(np.float32)})
        for output, name in zip(outputs, ("scores", "distances"), strict=True):
            np.testing.assert_allclose(output, golden.real.outputs[name][:size], atol=1e-4)


def test_data_without_boxes_is_refused(fit: Fit) -> None:
    with pytest.raises(StageError, match="torch-detection learns boxes; the data's labels are for classification"):
        fit(config=Digits(image_size=32))


def test_image_size_that_the_grid_does_not_fit_is_refused(workspace: Callable[..., Workspace]) -> None:
    space = workspace()
    prepared = data(SCENES, space)
    signature = prepared.facts.signature
    odd = signature.replace(inputs=(signature.inputs[0].replace(shape=("batch", 3, 48, 52)),))
    with pytest.raises(StageError, match=r"multiples of 8; the data has 48x52 pixels. Fix: change data.image_size"):
        train(TorchDetection(), space, splits=prepared.artifacts, signature=odd)


def test_cell_learns_the_smallest_object_around_it() -> None:
    truth = torch.tensor([[[0.0, 0, 40, 40, 1, 1], [16, 16, 24, 24, 2, 1], [0, 0, 0, 0, -1, 0], [4, 30, 12, 38, 0, 0]]])
    targets = assign_targets(truth, cell_centers(10, 10))
    classes = torch.where(targets.positive, targets.classes, -1).reshape(10, 10)
    assert set(classes[4:6, 4:6].flatten().tolist()) == {2}  # both are here
    assert classes[3, 3] == 1  # of the small one, this is outside
    assert classes[8, 2] == -1  # what does not count is not learned
    assert (classes >= 0).sum() == 16


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


def test_stored_network_computes_what_was_recorded(fit: Fit, workspace: Callable[..., Workspace]) -> None:
    space = workspace()
    report = fit(space, epochs=1)
    network, _ = load_network(space.path(report.artifacts["model"]))
    golden = Golden.load(space.path(report.artifacts["golden"]))
    outputs = run_network(network, [golden.real.inputs["input"]])
    for array, name in zip(outputs, ("scores", "distances"), strict=True):
        np.testing.assert_allclose(array, golden.real.outputs[name], atol=1e-5)
