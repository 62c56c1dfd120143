"""The confusion matrix: which classes are mistaken for which."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.frozen import Frozen

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
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    mistakes = confusion.sum(axis=0) + confusion.sum(axis=1) - 2 * np.diag(confusion)
    worst = np.sort(np.argsort(-mistakes, kind="stable")[:MAX_CLASSES])
    confusion, labels = confusion[np.ix_(worst, worst)], tuple(labels[i] for i in worst)
    figure = Figure(figsize=(2 + 0.45 * len(labels), 1.6 + 0.45 * len(labels)), layout="constrained")
    axes = figure.subplots()
    ConfusionMatrixDisplay(confusion, display_labels=labels).plot(ax=axes, cmap="Blues", colorbar=False)
    axes.set(xlabel="prediction", ylabel="label", title="Confusion matrix, test images")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
