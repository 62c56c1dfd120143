"""The configuration and the facts of `evaluate`."""

from typing import ClassVar

from pydantic import Field

from gauntlet.core.facts import Facts, Metrics, Outcome, Section
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Task
from gauntlet.metrics.class_curves import RankedClassScore, Ranking
from gauntlet.metrics.class_scores import score_metrics
from gauntlet.metrics.confidence_calibration import ConfidenceCalibration
from gauntlet.metrics.fit_verdict import FitVerdict
from tasks.evaluate.confusion import MAX_CLASSES, Confusion
from tasks.evaluate.cross_validation import CrossValidation


class EvaluateConfig(Frozen):
    """Limits on the quality of the trained model."""

    everyday: ClassVar = {"min_accuracy": 0.9, "min_score": 0.6}
    min_accuracy: float = Field(0.95, ge=0, le=1, description="share of test images classified correctly")
    min_score: float = Field(0.0, le=1, description="of another problem: its primary metric on the test samples")
    min_recall: float | None = Field(
        None,
        ge=0,
        le=1,
        description="recall of the worst class on the test images; default: 0.85 of a classifier",
    )
    min_precision: float = Field(0.0, ge=0, le=1, description="precision of the worst class on the test images")
    max_generalization_gap: float = Field(0.05, ge=0, le=1, description="of the primary metric: training minus test")
    max_ece: float | None = Field(
        None,
        ge=0,
        le=1,
        description="expected calibration error after temperature scaling",
    )
    folds: int | None = Field(
        None,
        ge=2,
        le=20,
        description="folds of a cross-validation; scikit-learn's models only",
    )

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
        (),
        description=f"test images; rows are labels, columns predictions; empty with more than {MAX_CLASSES} classes",
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
        return Section("The source model on the test images", template="scores.html.j2", values={"facts": self})

    def outcome(self) -> Outcome:
        """Return the problem's metric."""
        return Outcome(metric=self.metric)
