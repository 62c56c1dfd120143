"""scikit-learn training: a support vector machine that learns, repeats itself, and says why it cannot."""

from collections.abc import Callable

import numpy as np
import pytest
from gaussian_clusters import NAMES, clouds, signature_of

from frameworks.sklearn.classifier_training import SklearnTraining
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.train.facts import TrainFacts

Fit = Callable[..., Report[TrainFacts]]


@pytest.fixture
def fit(workspace: Callable[..., Workspace]) -> Fit:
    def run(splits: dict[str, ArraySplit], labels: tuple[str, ...] = NAMES, **config: object) -> Report[TrainFacts]:
        out = workspace()
        return SklearnTraining.model_validate(config).fit(splits, signature_of(splits, labels), out)

    return run


def test_svc_learns_and_signs_its_outputs_when_it_is_left_alone(fit: Fit, workspace: Callable[..., Workspace]) -> None:
    report = fit(clouds())
    report.raise_if_blocked()
    facts, signature = report.facts, report.facts.signature
    assert facts.architecture == "StandardScaler + CalibratedClassifierCV(OneVsRestClassifier(SVC))"
    assert (facts.history, facts.best_epoch) == ((), 0)
    assert [(o.name, o.dtype, o.shape) for o in signature.outputs] == [
        ("label", "int64", ("batch",)),
        ("probabilities", "float32", ("batch", 3)),
    ]
    assert signature.primary_output == "probabilities"
    out = workspace()
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert np.mean(file["test"] == file["test_labels"]) > 0.9
        assert {"train", "validation", "test"} <= set(file.files)
        assert np.array_equal(file["validation_scores"].argmax(1), file["validation"])
        assert not [name for name in file.files if name.startswith("calibration")]


def test_svc_has_the_same_digests_when_the_seed_is_the_same(fit: Fit) -> None:
    first, again, other = fit(clouds()), fit(clouds()), fit(clouds(), seed=1)
    assert first.artifacts == again.artifacts
    assert first.facts == again.facts
    assert first.artifacts["model"].sha256 != other.artifacts["model"].sha256


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly", "sigmoid"])
def test_svc_learns_two_classes_when_any_kernel_is_asked_for(fit: Fit, kernel: str) -> None:
    report = fit(clouds(2), NAMES[:2], kernel=kernel, C=1, gamma=0.1)
    assert report.facts.signature.outputs[1].shape == ("batch", 2)


def test_svc_refuses_pictures_when_nobody_made_vectors_of_them(fit: Fit) -> None:
    splits = {name: ArraySplit({"input": np.zeros((len(s), 3, 8, 8))}, s.labels) for name, s in clouds().items()}
    with pytest.raises(StageError, match=r"one vector per sample; .*\(3, 8, 8\).*data\.hog"):
        fit(splits)


def test_svc_says_why_when_scikit_learn_cannot_train(fit: Fit) -> None:
    splits = clouds()
    splits["train"].inputs["features"][7, 3] = np.nan
    with pytest.raises(StageError, match=r"scikit-learn cannot train on this data: .*NaN"):
        fit(splits)
    few = clouds() | {"train": ArraySplit(clouds()["train"].take(slice(0, 6)), clouds()["train"].labels[:6])}
    with pytest.raises(StageError, match=r"scikit-learn cannot train on this data: .*fold"):
        fit(few)


def test_svc_refuses_the_data_when_there_are_no_labels(fit: Fit) -> None:
    bare = {name: ArraySplit(split.inputs) for name, split in clouds().items()}
    with pytest.raises(StageError, match="training needs labels"):
        fit(bare)
