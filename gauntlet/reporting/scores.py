"""The source model's scores on the test images, by class."""

from typing import Any

MOST_CLASSES_LISTED = 40
MOST_MISTAKES = 5
ABSOLUTE = ("rmse", "mae")
"""Metrics in the units of the values; the others are shares."""


def prepare(facts: Any) -> dict[str, Any]:
    """Return what the page shows of the facts of `evaluate`.

    Raises:
        ValueError: when the confusion matrix does not have a row and a column for each class.
    """
    classes, confusion = facts["classes"], facts["confusion"]
    if confusion and (len(confusion) != len(classes) or any(len(row) != len(classes) for row in confusion)):
        raise ValueError("the confusion matrix is not classes by classes")
    # Each class with its row: counts of images, and their shares of the row.
    labels = [scored["label"] for scored in classes]
    matrix = [(label, [(n, n / max(1, sum(row))) for n in row]) for label, row in zip(labels, confusion, strict=False)]
    by_f1 = sorted(classes, key=lambda c: c["f1"] if c["f1"] == c["f1"] else -1.0)
    return {
        "facts": facts,
        "scores": facts.get("scores") or {"accuracy": facts["accuracy"]},
        "absolute": ABSOLUTE,
        "mistakes": [(m["label"], m["prediction"], m["images"]) for m in facts["largest_confusions"][:MOST_MISTAKES]],
        "matrix": matrix or None,
        "listed": classes if len(classes) <= MOST_CLASSES_LISTED else by_f1[:MOST_CLASSES_LISTED],
    }
