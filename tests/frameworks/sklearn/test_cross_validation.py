"""Cross-validation trains the estimator again, on the training split alone."""

from collections.abc import Callable

import numpy as np
import pytest
from gaussian_clusters import clouds
from sklearn.linear_model import LogisticRegression

from configs.schema import PipelineConfig
from frameworks.sklearn import estimator as sklearn_estimator
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from tasks.evaluate import EvaluateConfig, EvaluateFacts, evaluate
from tasks.evaluate.facts import summarize

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
