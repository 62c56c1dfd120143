"""The source model's scores on the test images: by class, of its confidence, and of its ranking."""

from typing import Any

from gauntlet.metrics.class_curves import Ranking
from gauntlet.metrics.confidence_calibration import ConfidenceCalibration
from gauntlet.reporting.score_plots import draw_calibration, draw_ranking

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
    ranked = [{"roc_auc": None, "average_precision": None, **scored} for scored in classes]
    by_f1 = sorted(ranked, key=lambda c: c["f1"] if c["f1"] == c["f1"] else -1.0)
    return {
        "facts": facts,
        "scores": facts.get("scores") or {"accuracy": facts["accuracy"]},
        "absolute": ABSOLUTE,
        "mistakes": [(m["label"], m["prediction"], m["images"]) for m in facts["largest_confusions"][:MOST_MISTAKES]],
        "matrix": matrix or None,
        "listed": ranked if len(classes) <= MOST_CLASSES_LISTED else by_f1[:MOST_CLASSES_LISTED],
        "folds": facts.get("cross_validation"),
        **_confidence(facts),
        **_ranking(facts),
    }


def _confidence(facts: Any) -> dict[str, Any]:
    """Return rows of name and scores, and the reliability diagram; none without a score per class."""
    if not facts.get("calibration"):
        return {"confidence": [], "reliability": None}
    found = ConfidenceCalibration.model_validate(facts["calibration"])
    rows = [("as the model states it", found.before)]
    if found.after is not None:
        split = f"fitted on {found.fitted_images} images of the {found.fitted_on} split"
        rows.append((f"divided by the temperature {found.temperature:.3g}, {split}", found.after))
    return {"confidence": rows, "reliability": draw_calibration(found)}


def _ranking(facts: Any) -> dict[str, Any]:
    """Return the means and the drawing of ROC and precision-recall; None without a score per class."""
    if not facts.get("ranking"):
        return {"ranking": None, "curves": None}
    ranking = Ranking.model_validate(facts["ranking"])
    return {"ranking": ranking, "curves": draw_ranking(ranking)}
