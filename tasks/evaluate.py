"""Is the trained model good enough to be worth exporting?"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tasks.artifact import Artifact
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.workspace import Workspace


class EvaluateConfig(Frozen):
    """The least that the trained model must reach."""

    min_accuracy: float = Field(0.95, ge=0, le=1, description="share of right answers on the test images")
    min_recall: float = Field(0.85, ge=0, le=1, description="recall of the worst class on the test images")
    max_generalization_gap: float = Field(
        0.05, ge=0, le=1, description="accuracy on a sample of the training images minus that on the test images"
    )


class ClassScore(Frozen):
    """One class on the test images."""

    label: str
    precision: Number
    recall: Number
    f1: Number
    images: int


class EvaluateFacts(Frozen):
    """How well the source model answers."""

    accuracy: Number = Field(description="on the test images")
    train_accuracy: Number | None = Field(
        description="on as many training images as there are test images; None for a model that was trained elsewhere"
    )
    macro_f1: Number
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...] = Field(description="test images; rows are the truth, columns the answer")


def evaluate(
    config: EvaluateConfig, out: Workspace, *, predictions: Artifact, labels: tuple[str, ...]
) -> Report[EvaluateFacts]:
    """Score the class numbers that training saved. The artifact `confusion_matrix` is a picture (PNG)."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    with np.load(out.path(predictions), allow_pickle=False) as file:
        truth, answer = file["test_labels"], file["test"]
        train_accuracy = float(np.mean(file["train"] == file["train_labels"])) if "train" in file.files else None
    numbers = list(range(len(labels)))
    precision, recall, f1, support = precision_recall_fscore_support(truth, answer, labels=numbers, zero_division=0.0)
    confusion = confusion_matrix(truth, answer, labels=numbers)
    accuracy = float(np.mean(truth == answer))
    worst = int(np.argmin(recall))
    facts = EvaluateFacts(
        accuracy=accuracy,
        train_accuracy=train_accuracy,
        macro_f1=float(np.mean(f1)),
        classes=tuple(
            ClassScore(
                label=label,
                precision=float(precision[i]),
                recall=float(recall[i]),
                f1=float(f1[i]),
                images=int(support[i]),
            )
            for i, label in enumerate(labels)
        ),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
    )
    checks: tuple[Check, ...] = (
        Check(
            name="evaluate.min_accuracy",
            value=accuracy,
            op=">=",
            limit=config.min_accuracy,
            remedy="train longer or on more data (train.epochs), or accept less",
        ),
        Check(
            name="evaluate.min_recall",
            value=float(recall[worst]),
            op=">=",
            limit=config.min_recall,
            detail=f"worst class '{labels[worst]}', {int(support[worst])} images",
            remedy="look at this class in the confusion matrix",
        ),
    )
    if train_accuracy is not None:
        checks += (
            Check(
                name="evaluate.max_generalization_gap",
                value=train_accuracy - accuracy,
                op="<=",
                limit=config.max_generalization_gap,
                detail=f"{train_accuracy:.4f} on training images, {accuracy:.4f} on test images",
                remedy="the model memorises: more data, more weight decay, fewer epochs",
            ),
        )
    picture = draw_confusion(confusion, labels, out.folder / "confusion_matrix.png")
    return Report(stage="evaluate", facts=facts, checks=checks, artifacts={"confusion_matrix": out.keep(picture)})


def draw_confusion(confusion: npt.NDArray[np.int64], labels: tuple[str, ...], path: Path) -> Path:
    """Draw the confusion matrix, shape (classes, classes), rows the truth; return the path."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    figure = Figure(figsize=(2 + 0.45 * len(labels), 1.6 + 0.45 * len(labels)), layout="constrained")
    axes = figure.subplots()
    ConfusionMatrixDisplay(confusion, display_labels=labels).plot(ax=axes, cmap="Blues", colorbar=False)
    axes.set(xlabel="answer of the model", ylabel="truth", title="Confusion matrix, test images")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
