"""How well the source model does on the test images, class by class."""

from typing import Any

MOST_CLASSES_IN_MATRIX = 24
MOST_CLASSES_LISTED = 40
MOST_MISTAKES = 5


def prepare(facts: Any) -> dict[str, Any]:
    """Return what the page shows of the facts of `evaluate`.

    Raises:
        ValueError: when the confusion matrix is not classes by classes.
    """
    classes, confusion = facts["classes"], facts["confusion"]
    if len(confusion) != len(classes) or any(len(row) != len(classes) for row in confusion):
        raise ValueError("the confusion matrix is not classes by classes")
    return {
        "facts": facts,
        "mistakes": _mistakes([scored["label"] for scored in classes], confusion),
        "matrix": _with_shares(classes, confusion) if len(classes) <= MOST_CLASSES_IN_MATRIX else None,
        "listed": _worst(classes),
    }


def _mistakes(labels: list[str], confusion: list[list[int]]) -> list[tuple[str, str, int]]:
    """Return the most frequent mistakes as (true class, prediction, images)."""
    found = [(n, i, j) for i, row in enumerate(confusion) for j, n in enumerate(row) if i != j and n]
    found.sort(key=lambda mistake: -mistake[0])
    return [(labels[i], labels[j], n) for n, i, j in found[:MOST_MISTAKES]]


def _with_shares(classes: list[Any], confusion: list[list[int]]) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return each class with its row: counts of images, and their shares of the row."""
    return [
        (scored["label"], [(n, n / max(1, sum(row))) for n in row])
        for scored, row in zip(classes, confusion, strict=True)
    ]


def _worst(classes: list[Any]) -> list[Any]:
    """Return the classes; of many, those with the lowest F1."""
    if len(classes) <= MOST_CLASSES_LISTED:
        return classes
    return sorted(classes, key=lambda c: c["f1"] if c["f1"] == c["f1"] else -1.0)[:MOST_CLASSES_LISTED]
