"""Gate on the quality of the trained model, before it is exported."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.workspace import Workspace


class EvaluateConfig(Frozen):
    """Limits on the quality of the trained model."""

    min_accuracy: float = Field(0.95, ge=0, le=1, description="share of test images classified correctly")
    min_recall: float = Field(0.85, ge=0, le=1, description="recall of the worst class on the test images")
    max_generalization_gap: float = Field(
        0.05, ge=0, le=1, description="accuracy on a sample of the training images minus that on the test images"
    )


class ClassScore(Frozen):
    """Scores of one class on the test images."""

    label: str
    precision: Number
    recall: Number
    f1: Number
    images: int


class EvaluateFacts(Frozen):
    """How well the trained model classifies."""

    accuracy: Number = Field(description="on the test images")
    train_accuracy: Number | None = Field(
        description="on as many training images as there are test images; None for a model that was trained elsewhere"
    )
    macro_f1: Number
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...] = Field(description="test images; rows are labels, columns are predictions")


def evaluate(
    config: EvaluateConfig, workspace: Workspace, *, predictions: Artifact, labels: tuple[str, ...]
) -> Report[EvaluateFacts]:
    """Score the predicted classes that the train stage stored. The artifact `confusion_matrix` is a PNG image."""
    from sklearn.metrics import confusion_matrix

    with np.load(workspace.path(predictions), allow_pickle=False) as file:
        truth, predicted = file["test_labels"], file["test"]
        train_accuracy = float(np.mean(file["train"] == file["train_labels"])) if "train" in file.files else None
    confusion = confusion_matrix(truth, predicted, labels=list(range(len(labels))))
    classes = _class_scores(truth, predicted, labels)
    facts = EvaluateFacts(
        accuracy=float(np.mean(truth == predicted)),
        train_accuracy=train_accuracy,
        macro_f1=float(np.mean([score.f1 for score in classes])),
        classes=classes,
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
    )
    image = draw_confusion(confusion, labels, workspace.folder / "confusion_matrix.png")
    return Report(
        stage="evaluate",
        facts=facts,
        checks=_checks(config, facts),
        artifacts={"confusion_matrix": workspace.store_file(image)},
    )


def _class_scores(
    truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], labels: tuple[str, ...]
) -> tuple[ClassScore, ...]:
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, support = precision_recall_fscore_support(
        truth, predicted, labels=list(range(len(labels))), zero_division=0.0
    )
    return tuple(
        ClassScore(
            label=label, precision=float(precision[i]), recall=float(recall[i]), f1=float(f1[i]), images=int(support[i])
        )
        for i, label in enumerate(labels)
    )


def _checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    worst = min(facts.classes, key=lambda score: score.recall)
    checks: tuple[Check, ...] = (
        Check(
            name="evaluate.min_accuracy",
            value=facts.accuracy,
            op=">=",
            limit=config.min_accuracy,
            remedy="train longer or on more data (train.epochs), or lower evaluate.min_accuracy",
        ),
        Check(
            name="evaluate.min_recall",
            value=worst.recall,
            op=">=",
            limit=config.min_recall,
            detail=f"worst class '{worst.label}', {worst.images} images",
            remedy="look at this class in the confusion matrix",
        ),
    )
    if facts.train_accuracy is not None:
        checks += (
            Check(
                name="evaluate.max_generalization_gap",
                value=facts.train_accuracy - facts.accuracy,
                op="<=",
                limit=config.max_generalization_gap,
                detail=f"{facts.train_accuracy:.4f} on training images, {facts.accuracy:.4f} on test images",
                remedy="the model overfits: use more data, more weight decay or fewer epochs",
            ),
        )
    return checks


def draw_confusion(confusion: npt.NDArray[np.int64], labels: tuple[str, ...], path: Path) -> Path:
    """Draw the confusion matrix, shape (classes, classes), rows are labels; return the path."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    figure = Figure(figsize=(2 + 0.45 * len(labels), 1.6 + 0.45 * len(labels)), layout="constrained")
    axes = figure.subplots()
    ConfusionMatrixDisplay(confusion, display_labels=labels).plot(ax=axes, cmap="Blues", colorbar=False)
    axes.set(xlabel="prediction", ylabel="label", title="Confusion matrix, test images")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
