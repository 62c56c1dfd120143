"""The scores of the source model on the page."""

from collections.abc import Sequence

from gauntlet.metrics.class_curves import RankedClassScore
from gauntlet.metrics.confidence_calibration import CalibrationScores, ConfidenceCalibration

MAX_CLASSES_LISTED = 40
MAX_MISTAKES = 5
ABSOLUTE = ("rmse", "mae")
"""Metrics in the units of the values; the others are shares."""


def listed(classes: Sequence[RankedClassScore]) -> Sequence[RankedClassScore]:
    """Return the classes, or of many those with the least F1."""
    if len(classes) <= MAX_CLASSES_LISTED:
        return classes
    return sorted(classes, key=lambda c: c.f1 if c.f1 == c.f1 else -1.0)[:MAX_CLASSES_LISTED]


def confidence(calibration: ConfidenceCalibration) -> list[tuple[str, CalibrationScores]]:
    """Return the scores of the confidence, before and after temperature scaling, by name."""
    rows = [("as the model states it", calibration.before)]
    if calibration.after is not None:
        split = f"fitted on {calibration.fitted_images} samples of the {calibration.fitted_on} split"
        rows.append((f"divided by the temperature {calibration.temperature:.3g}, {split}", calibration.after))
    return rows
