"""The configuration and the facts of `evaluate`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.special import stdtrit

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts, Metrics, Outcome, Section
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Task
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import require_labels
from gauntlet.frameworks.framework import frameworks
from gauntlet.metrics.class_curves import RankedClassScore, Ranking
from gauntlet.metrics.class_scores import score_metrics
from gauntlet.metrics.confidence_calibration import ConfidenceCalibration
from gauntlet.reporting.drawing import image_file
from tasks.evaluate.fit_verdict import FitVerdict


class CrossValidation(Frozen):
    """Accuracies on the parts of the training split, each by a model that was trained without that part."""

    accuracies: tuple[Number, ...] = Field(description="by part")
    mean: Number
    low: Number = Field(description="lower end of the 95 % interval of the mean, by a t-test corrected for the overlap")
    high: Number
    images: int = Field(description="in the training split")


def cross_validate(
    folds: int, workspace: Workspace, model: Artifact | None, splits: Mapping[str, Artifact]
) -> CrossValidation:
    """Train a model with the same settings `folds` times on the training split; the test split is not used.

    Raises:
        StageError: without a labelled training split, or when the framework cannot train on a part.
    """
    split = read_split(workspace.path(splits["train"])) if "train" in splits else None
    if model is None or split is None or split.labels is None:
        names = f"the data has {sorted(splits)}"
        raise StageError(f"evaluate.folds needs a training split with labels; {names}. Fix: add one, or remove the key")
    columns, path = split.take(slice(0, len(split))), workspace.path(model)
    train_again = next(f.cross_validate for f in frameworks() if path.suffix in f.suffixes and f.cross_validate)
    return summarize(train_again(folds, path, columns, require_labels(split)), len(split))


def summarize(accuracies: list[float], images: int) -> CrossValidation:
    """Return mean and interval: the parts' trainings overlap, which widens it (Nadeau and Bengio, 2003)."""
    folds, mean = len(accuracies), float(np.mean(accuracies))
    error = math.sqrt((1 / folds + 1 / (folds - 1)) * float(np.var(accuracies, ddof=1)))
    half = float(stdtrit(folds - 1, 0.975)) * error
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return CrossValidation(accuracies=tuple(accuracies), mean=mean, low=low, high=high, images=images)


MAX_CLASSES = 24
"""In the report and the image, the confusion matrix has no more; the artifact has all."""
MAX_CONFUSIONS = 20


class Confusion(Frozen):
    """Test images of one class that were predicted as another."""

    label: str
    prediction: str
    images: int


def largest_confusions(confusion: npt.NDArray[np.int64], labels: tuple[str, ...]) -> tuple[Confusion, ...]:
    """Return the most frequent mistakes of a matrix of shape (classes, classes), rows are labels."""
    mistakes = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:MAX_CONFUSIONS]
    pairs = zip(*np.unravel_index(order, mistakes.shape), strict=True)
    return tuple(
        Confusion(label=labels[i], prediction=labels[j], images=int(mistakes[i, j])) for i, j in pairs if mistakes[i, j]
    )


def draw_confusion(confusion: npt.NDArray[np.int64], labels: tuple[str, ...], path: Path) -> Path:
    """Draw the confusion matrix, shape (classes, classes), rows are labels; return the path.

    With more than `MAX_CLASSES`, it is that of the classes with the most mistakes.
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    mistakes = confusion.sum(axis=0) + confusion.sum(axis=1) - 2 * np.diag(confusion)
    worst = np.sort(np.argsort(-mistakes, kind="stable")[:MAX_CLASSES])
    confusion, labels = confusion[np.ix_(worst, worst)], tuple(labels[i] for i in worst)
    with image_file(path, 2 + 0.45 * len(labels), 1.6 + 0.45 * len(labels), 110) as figure:
        axes = figure.subplots()
        ConfusionMatrixDisplay(confusion, display_labels=labels).plot(ax=axes, cmap="Blues", colorbar=False)
        axes.set(xlabel="prediction", ylabel="label", title="Confusion matrix, test samples")
    return path


class EvaluateConfig(Frozen):
    """Limits on the quality of the trained model."""

    everyday: ClassVar = {"min_accuracy": 0.9, "min_score": 0.6}
    min_accuracy: float = Field(0.95, ge=0, le=1, description="share of test images classified correctly")
    min_score: float | None = Field(0.0, le=1, description="of another problem: its primary metric; null: any")
    min_recall: float | None = Field(
        None, ge=0, le=1, description="recall of the worst class on the test images; default: 0.85 of a classifier"
    )
    min_precision: float = Field(0.0, ge=0, le=1, description="precision of the worst class on the test images")
    max_generalization_gap: float = Field(0.05, ge=0, le=1, description="of the primary metric: training minus test")
    max_ece: float | None = Field(None, ge=0, le=1, description="expected calibration error after temperature scaling")
    folds: int | None = Field(None, ge=2, le=20, description="folds of a cross-validation; scikit-learn's models only")

    def recall_limit(self, task: Task) -> float:
        """Return the least recall of the worst class, for a problem."""
        return self.min_recall if self.min_recall is not None else 0.85 * (task == "classification")


class EvaluateFacts(Facts):
    """How good the trained model's predictions are; what is by class is empty for problems without classes."""

    of_reference = True

    metric: str = Field("accuracy", description="the primary metric of the problem")
    accuracy: Number = Field(description="the primary metric on the test samples")
    train_accuracy: Number | None = Field(description="on an equal number of training samples; None if unknown")
    scores: dict[str, Number] = Field(default_factory=dict, description="every metric on the test samples")
    macro_f1: Number | None = None
    classes: tuple[RankedClassScore, ...] = Field((), description="of a classifier all; else those that occur")
    confusion: tuple[tuple[int, ...], ...] = Field(
        (), description=f"test images; rows are labels, columns predictions; empty with more than {MAX_CLASSES} classes"
    )
    largest_confusions: tuple[Confusion, ...] = Field((), description="the most frequent mistakes")
    calibration: ConfidenceCalibration | None = Field(
        None, description="of the confidence; None for a model without a score per class"
    )
    ranking: Ranking | None = Field(None, description="ROC and precision-recall; None without a score per class")
    fit: FitVerdict | None = Field(None, description="None where the scores on training samples are unknown")
    cross_validation: CrossValidation | None = Field(None, description="with `evaluate.folds`")

    @property
    def temperature(self) -> float | None:
        """The temperature that calibrates the confidence, or None where none was fitted."""
        return self.calibration.temperature if self.calibration else None

    def metrics(self) -> Metrics:
        """Return the same for the run as for the reference."""
        return self.quality()

    def quality(self) -> Metrics:
        """Return every metric, the ranking, and the calibration before and after temperature scaling."""
        values: dict[str, float | None] = {**score_metrics(self.scores), "quality.macro_f1": self.macro_f1}
        if self.ranking is not None:
            values["quality.macro_roc_auc"] = self.ranking.macro_roc_auc
            values["quality.macro_average_precision"] = self.ranking.macro_average_precision
        if (fit := self.calibration) is not None:
            values |= fit.before.metrics(calibrated=False) | {"quality.temperature": fit.temperature}
            values |= {} if fit.after is None else fit.after.metrics(calibrated=True)
        if self.cross_validation is not None:
            values["quality.cross_validated_accuracy"] = self.cross_validation.mean
        return values

    def class_scores(self) -> tuple[RankedClassScore, ...]:
        """Return the scores of each class."""
        return self.classes

    def section(self) -> Section:
        """Return the scores of the model, of its classes and of its confidence."""
        return Section("The source model on the test samples", template="scores.html.j2", values={"facts": self})

    def outcome(self) -> Outcome:
        """Return the problem's metric."""
        return Outcome(metric=self.metric)
