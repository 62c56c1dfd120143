"""The source model's scores on the test images, by class."""

from typing import Any

MOST_CLASSES_IN_MATRIX = 24
MOST_CLASSES_LISTED = 40
MOST_MISTAKES = 5


def prepare(facts: Any) -> dict[str, Any]:
    """Return what the page shows of the facts of `evaluate`.

    Raises:
        ValueError: when the confusion matrix does not have a row and a column for each class.
    """
    classes, confusion = facts["classes"], facts["confusion"]
    if len(confusion) != len(classes) or any(len(row) != len(classes) for row in confusion):
        raise ValueError("the confusion matrix is not classes by classes")
    labels = [scored["label"] for scored in classes]
    mistakes = [(labels[i], labels[j], n) for i, row in enumerate(confusion) for j, n in enumerate(row) if i != j and n]
    # Each class with its row: counts of images, and their shares of the row.
    matrix = [(label, [(n, n / max(1, sum(row))) for n in row]) for label, row in zip(labels, confusion, strict=True)]
    by_f1 = sorted(classes, key=lambda c: c["f1"] if c["f1"] == c["f1"] else -1.0)
    return {
        "facts": facts,
        "mistakes": sorted(mistakes, key=lambda mistake: -mistake[2])[:MOST_MISTAKES],
        "matrix": matrix if len(classes) <= MOST_CLASSES_IN_MATRIX else None,
        "listed": classes if len(classes) <= MOST_CLASSES_LISTED else by_f1[:MOST_CLASSES_LISTED],
    }
