"""scikit-learn training: it learns, repeats itself, says why it cannot, and is trained again by cross-validation."""

from collections.abc import Callable

import numpy as np
import pytest
from gaussian_clusters import NAMES, clouds, signature_of
from sklearn.linear_model import LogisticRegression

from configs.schema import PipelineConfig
from frameworks.sklearn import estimator as sklearn_estimator
from frameworks.sklearn.classifier_training import SklearnTraining
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.evaluate import EvaluateConfig, EvaluateFacts, evaluate
from tasks.evaluate.facts import summarize
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


SIGNATURE = Signature(task="classification", layout="none", inputs=(), outputs=(), labels=("a", "b", "c"))
Validate = Callable[..., Report[EvaluateFacts]]


@pytest.fixture
def validate(workspace: Callable[..., Workspace]) -> Validate:
    def run(folds: int, *, without: tuple[str, ...] = (), noise: float = 0.0, **config: float) -> Report[EvaluateFacts]:
        out, splits = workspace(), clouds()
        train = splits["train"]
        labels = np.random.default_rng(0).permutation(train.labels) if noise else train.labels
        splits = {**splits, "train": type(train)(train.inputs, labels)}
        model = LogisticRegression(max_iter=1000).fit(train.inputs["features"].astype(np.float32), train.labels)
        sklearn_estimator.save(out.folder / "model.skops", model)
        predicted = model.predict(splits["test"].inputs["features"])
        np.savez(out.folder / "predictions.npz", test=predicted, test_labels=splits["test"].labels)
        stored: dict[str, Artifact] = {
            name: out.store_file(split.save(out.folder, name)) for name, split in splits.items() if name not in without
        }
        return evaluate(
            EvaluateConfig(folds=folds, **{"min_accuracy": 0.9, "min_recall": 0, **config}),
            out,
            predictions=out.store_file(out.folder / "predictions.npz"),
            signature=SIGNATURE,
            model=out.store_file(out.folder / "model.skops"),
            splits=stored,
        )

    return run


def test_every_part_is_tested_once_and_the_mean_has_an_interval(validate: Validate) -> None:
    report = validate(5)
    report.raise_if_blocked()
    found = report.facts.cross_validation
    assert len(found.accuracies) == 5
    assert found.mean == pytest.approx(np.mean(found.accuracies))
    assert 0.9 < found.low <= found.mean <= found.high


def test_training_data_that_teaches_nothing_fails_the_gate_though_the_model_is_good(validate: Validate) -> None:
    report = validate(4, noise=1)
    assert [check.name for check in report.failures] == ["evaluate.cross_validated_accuracy"]
    assert "mean of 4 parts" in report.failures[0].detail


def test_without_a_training_split_the_reason_is_named(validate: Validate) -> None:
    with pytest.raises(StageError, match=r"evaluate\.folds needs a training split with labels; the data has \["):
        validate(3, without=("train",))


def test_interval_is_wider_than_that_of_independent_parts() -> None:
    found = summarize([0.9, 0.95, 1.0, 0.95, 0.9], 100)
    independent = 2.776 * np.std(found.accuracies, ddof=1) / np.sqrt(5)
    assert (found.high - found.low) / 2 > 1.2 * independent
    assert found.high <= 1


@pytest.mark.parametrize("kind", ["torch", "keras", "flax", "onnx"])
def test_other_frameworks_are_refused_with_the_reason(kind: str) -> None:
    more = {"onnx": {"model": "m.onnx"}}.get(kind, {})
    with pytest.raises(ValueError, match=rf"evaluate\.folds: 5 trains .* sklearn-model do, not '{kind}'; remove it"):
        PipelineConfig.model_validate({"train": {"kind": kind, **more}, "evaluate": {"folds": 5}})
