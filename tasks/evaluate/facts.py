"""The configuration and the facts of `evaluate`."""

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.class_curves import RankedClassScore, Ranking
from gauntlet.metrics.confidence_calibration import ConfidenceCalibration
from gauntlet.metrics.fit_verdict import FitVerdict
from tasks.evaluate.confusion import MOST_CLASSES, Confusion
from tasks.evaluate.cross_validation import CrossValidation


class EvaluateConfig(Frozen):
    """Limits on the quality of the trained model."""

    min_accuracy: float = Field(0.95, ge=0, le=1, description="share of test images classified correctly")
    min_score: float = Field(0.0, le=1, description="of another problem: its primary metric on the test samples")
    min_recall: float = Field(0.85, ge=0, le=1, description="recall of the worst class on the test images")
    min_precision: float = Field(0.0, ge=0, le=1, description="precision of the worst class on the test images")
    max_generalization_gap: float = Field(0.05, ge=0, le=1, description="of the primary metric: training minus test")
    max_ece: float | None = Field(
        None,
        ge=0,
        le=1,
        description="expected calibration error of the confidence on the test images, after temperature scaling; by "
        "default of any size",
    )
    folds: int | None = Field(
        None,
        ge=2,
        le=20,
        description="cross-validate: train again on the training split without each of so many parts, and test on that "
        "part; scikit-learn's models only",
    )


class EvaluateFacts(Frozen):
    """How good the trained model's predictions are; what is by class is empty for problems without classes."""

    metric: str = Field("accuracy", description="the primary metric of the problem")
    accuracy: Number = Field(description="the primary metric on the test samples")
    train_accuracy: Number | None = Field(description="on an equal number of training samples; None if unknown")
    scores: dict[str, Number] = Field(default_factory=dict, description="every metric on the test samples")
    macro_f1: Number | None = None
    classes: tuple[RankedClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = Field(
        (),
        description=f"test images; rows are labels, columns predictions; empty with more than {MOST_CLASSES} classes",
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
