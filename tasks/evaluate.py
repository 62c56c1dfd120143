"""Check the quality of the trained model before it is exported."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array
from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.class_scores import ClassScore, class_scores
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification

MOST_CLASSES = 24
"""In the report and the image, the confusion matrix has no more; the artifact has all."""
MOST_CONFUSIONS = 20


class EvaluateConfig(Frozen):
    """Limits on the quality of the trained model."""

    min_accuracy: float = Field(0.95, ge=0, le=1, description="share of test images classified correctly")
    min_score: float = Field(0.0, le=1, description="of another problem: its primary metric on the test samples")
    min_recall: float = Field(0.85, ge=0, le=1, description="recall of the worst class on the test images")
    min_precision: float = Field(0.0, ge=0, le=1, description="precision of the worst class on the test images")
    max_generalization_gap: float = Field(0.05, ge=0, le=1, description="of the primary metric: training minus test")


class Confusion(Frozen):
    """Test images of one class that were predicted as another."""

    label: str
    prediction: str
    images: int


class EvaluateFacts(Frozen):
    """How good the trained model's predictions are; what is by class is empty for problems without classes."""

    metric: str = Field("accuracy", description="the primary metric of the problem")
    accuracy: Number = Field(description="the primary metric on the test samples")
    train_accuracy: Number | None = Field(description="on an equal number of training samples; None if unknown")
    scores: dict[str, Number] = Field(default_factory=dict, description="every metric on the test samples")
    macro_f1: Number | None = None
    classes: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = Field(
        (),
        description=f"test images; rows are labels, columns predictions; empty with more than {MOST_CLASSES} classes",
    )
    largest_confusions: tuple[Confusion, ...] = Field((), description="the most frequent mistakes")


def evaluate(
    config: EvaluateConfig, workspace: Workspace, *, predictions: Artifact, signature: Signature
) -> Report[EvaluateFacts]:
    """Score the predictions that the train stage stored, by the problem's own metrics.

    For classes, the artifact `confusion` holds the counts, shape (classes, classes); `confusion_matrix` is an image of
    it, or, with many classes, of those with the most mistakes.
    """
    problem = problem_of(signature)
    with np.load(workspace.path(predictions), allow_pickle=False) as file:
        truth, predicted = file["test_labels"], file["test"]
        train = problem.score(file["train"], file["train_labels"]) if "train" in file.files else {}
    scores = problem.score(predicted, truth)
    facts = EvaluateFacts(
        metric=problem.metric,
        accuracy=scores[problem.metric],
        train_accuracy=train.get(problem.metric),
        scores=scores,
    )
    if isinstance(problem, Classification):
        facts, artifacts = _score_classes(facts, workspace, truth, predicted, signature.labels)
        return Report(stage="evaluate", facts=facts, checks=_class_checks(config, facts), artifacts=artifacts)
    detail, fix = f"{problem.metric} on the test samples", "train longer or on more data, or lower evaluate.min_score"
    score = Check.of("evaluate.min_score", facts.accuracy, ">=", config.min_score, detail, fix)
    return Report(stage="evaluate", facts=facts, checks=(score, *_gap_checks(config, facts)))


def _score_classes(
    facts: EvaluateFacts, workspace: Workspace, truth: Array, predicted: Array, labels: tuple[str, ...]
) -> tuple[EvaluateFacts, dict[str, Artifact]]:
    """Add the scores of each class, and store the confusion matrix."""
    from sklearn.metrics import confusion_matrix

    confusion = confusion_matrix(truth, predicted, labels=list(range(len(labels))))
    classes = class_scores(truth, predicted, labels)
    facts = facts.replace(
        macro_f1=float(np.mean([score.f1 for score in classes])),
        classes=classes,
        confusion=tuple(map(tuple, confusion.tolist())) if len(labels) <= MOST_CLASSES else (),
        largest_confusions=_largest_confusions(confusion, labels),
    )
    image = draw_confusion(confusion, labels, workspace.folder / "confusion_matrix.png")
    np.savez_compressed(workspace.folder / "confusion.npz", confusion=confusion, labels=np.array(labels))
    counts = workspace.store_file(workspace.folder / "confusion.npz")
    return facts, {"confusion_matrix": workspace.store_file(image), "confusion": counts}


def _class_checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    fix = "train longer or on more data (train.epochs), or lower evaluate.min_accuracy"
    accuracy = Check.of("evaluate.min_accuracy", facts.accuracy, ">=", config.min_accuracy, remedy=fix)
    worst = min(facts.classes, key=lambda score: score.recall)
    detail, fix = f"worst class '{worst.label}', {worst.images} images", "look at this class in the confusion matrix"
    recall = Check.of("evaluate.min_recall", worst.recall, ">=", config.min_recall, detail, fix)
    worst = min(facts.classes, key=lambda score: score.precision)
    detail = f"worst class '{worst.label}', {worst.images} images"
    precision = Check.of("evaluate.min_precision", worst.precision, ">=", config.min_precision, detail, fix)
    return accuracy, recall, precision, *_gap_checks(config, facts)


def _gap_checks(config: EvaluateConfig, facts: EvaluateFacts) -> tuple[Check, ...]:
    if facts.train_accuracy is None:
        return ()
    gap, limit = facts.train_accuracy - facts.accuracy, config.max_generalization_gap
    detail = f"{facts.metric} {facts.train_accuracy:.4f} on training images, {facts.accuracy:.4f} on test images"
    fix = "the model overfits: use more data, more weight decay or fewer epochs"
    return (Check.of("evaluate.max_generalization_gap", gap, "<=", limit, detail, fix),)


def _largest_confusions(confusion: npt.NDArray[np.int64], labels: tuple[str, ...]) -> tuple[Confusion, ...]:
    mistakes = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:MOST_CONFUSIONS]
    pairs = zip(*np.unravel_index(order, mistakes.shape), strict=True)
    return tuple(
        Confusion(label=labels[i], prediction=labels[j], images=int(mistakes[i, j])) for i, j in pairs if mistakes[i, j]
    )


def draw_confusion(confusion: npt.NDArray[np.int64], labels: tuple[str, ...], path: Path) -> Path:
    """Draw the confusion matrix, shape (classes, classes), rows are labels; return the path.

    With more than `MOST_CLASSES`, it is that of the classes with the most mistakes.
    """
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    mistakes = confusion.sum(axis=0) + confusion.sum(axis=1) - 2 * np.diag(confusion)
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
    confusion, labels = confusion[np.ix_(shown, shown)], tuple(labels[i] for i in shown)
    figure = Figure(figsize=(2 + 0.45 * len(labels), 1.6 + 0.45 * len(labels)), layout="constrained")
    axes = figure.subplots()
    ConfusionMatrixDisplay(confusion, display_labels=labels).plot(ax=axes, cmap="Blues", colorbar=False)
    axes.set(xlabel="prediction", ylabel="label", title="Confusion matrix, test images")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
