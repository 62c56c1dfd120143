"""Plots of the source model's scores: reliability diagram, ROC and precision-recall."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gauntlet.metrics.class_curves import Ranking
from gauntlet.metrics.confidence_calibration import BINS, CalibrationScores, ConfidenceCalibration
from gauntlet.reporting.drawing import LINE, MARKERS, MUTED, SERIES, WIDTH_PX, embed, image_file, short, themed
from gauntlet.reporting.text_format import fixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT_PX = 300
DPI = 110
LABEL_CHARACTERS = 18
MARGIN = 0.02


@dataclass(frozen=True)
class Colors:
    """What differs between the page, where they follow the theme, and an image file."""

    series: Sequence[str]
    muted: str
    line: str


PAGE = Colors(SERIES, MUTED, LINE)
IMAGE = Colors(("#2457c5", "#b8510b", "#0b7a6b", "#8a3fa0", "#7a6200", "#b02a5b"), "#59636e", "#dfe3e8")


def draw_calibration(calibration: ConfidenceCalibration) -> Markup:
    """Return the reliability diagram, beside how many images have which confidence."""
    parts = [f"expected calibration error {fixed(calibration.before.ece, 3)}"]
    if calibration.after is not None:
        parts.append(f"{fixed(calibration.after.ece, 3)} after temperature scaling")
    with themed(HEIGHT_PX) as figure:
        _plot_calibration(figure, calibration, PAGE)
        return embed(figure, "calibration", f"Reliability diagram: {', '.join(parts)}.")


def save_calibration(calibration: ConfidenceCalibration, path: Path) -> Path:
    """Write the same as an image file; return the path."""
    return _save(lambda figure: _plot_calibration(figure, calibration, IMAGE), path)


def draw_ranking(ranking: Ranking) -> Markup:
    """Return the ROC and the precision-recall curves of some classes."""
    text = f"ROC and precision-recall curves: macro AUC {fixed(ranking.macro_roc_auc, 3)}, "
    with themed(HEIGHT_PX) as figure:
        _plot_ranking(figure, ranking, PAGE)
        return embed(figure, "ranking", f"{text}macro average precision {fixed(ranking.macro_average_precision, 3)}.")


def save_ranking(ranking: Ranking, path: Path) -> Path:
    """Write the same as an image file; return the path."""
    return _save(lambda figure: _plot_ranking(figure, ranking, IMAGE), path)


def _save(plot: Callable[["Figure"], None], path: Path) -> Path:
    with image_file(path, WIDTH_PX / DPI, 1.15 * HEIGHT_PX / DPI, 2 * DPI) as figure:
        plot(figure)
    return path


def _plot_calibration(figure: "Figure", calibration: ConfidenceCalibration, colors: Colors) -> None:
    reliability, counts = figure.subplots(1, 2, gridspec_kw={"wspace": 0.12})
    before, after = calibration.before, calibration.after
    change = fixed(before.ece, 3) + ("" if after is None else f" → {fixed(after.ece, 3)}")
    reliability.plot([0, 1], [0, 1], color=colors.muted, linewidth=1, linestyle="--")
    series = [("before", before)] if after is None else [("before", before), ("after temperature scaling", after)]
    for index, (name, scores) in enumerate(series):
        _plot_bins(reliability, counts, scores, name, index, len(series), colors)
    _finish(reliability, f"Accuracy by confidence\nexpected calibration error {change}", "confidence", colors)
    _finish(counts, "Samples by confidence\nshare of the test samples", "confidence", colors)
    reliability.legend(loc="best")
    counts.autoscale(axis="y")
    counts.set_ylim(bottom=0)


def _plot_bins(
    reliability: Any, counts: Any, scores: CalibrationScores, name: str, index: int, series: int, colors: Colors
) -> None:
    confidences, accuracies = [b.confidence for b in scores.bins], [b.accuracy for b in scores.bins]
    total, color, width = sum(b.images for b in scores.bins), colors.series[1 - index], 0.8 / BINS / series
    marker = {"marker": MARKERS[index], "markersize": 5}
    reliability.plot(confidences, accuracies, color=color, linewidth=1.5, label=name, **marker)
    places = [(min(BINS - 1, int(c * BINS)) + 0.1) / BINS + index * width for c in confidences]
    counts.bar(places, [b.images / total for b in scores.bins], width, align="edge", color=color)


def _plot_ranking(figure: "Figure", ranking: Ranking, colors: Colors) -> None:
    roc, recall = figure.subplots(1, 2, gridspec_kw={"wspace": 0.12})
    roc.plot([0, 1], [0, 1], color=colors.muted, linewidth=1, linestyle="--")
    for curve, color in zip(ranking.curves, colors.series, strict=False):
        name = short(curve.label, LABEL_CHARACTERS)
        area, average = f"{name}: {fixed(curve.roc_auc, 3)}", f"{name}: {fixed(curve.average_precision, 3)}"
        roc.plot(curve.false_positive_rate, curve.true_positive_rate, color=color, linewidth=1.5, label=area)
        steps = {"drawstyle": "steps-pre", "color": color, "linewidth": 1.5, "label": average}
        recall.plot(curve.true_positive_rate, curve.precision, **steps)
    macro_area, macro_average = fixed(ranking.macro_roc_auc, 4), fixed(ranking.macro_average_precision, 4)
    _finish(roc, f"ROC: true positive rate\nmacro AUC {macro_area}", "false positive rate", colors)
    _finish(recall, f"Precision by recall\nmacro average precision {macro_average}", "recall", colors)
    roc.legend(loc="lower right")
    recall.legend(loc="best")


def _finish(axes: Any, title: str, x: str, colors: Colors) -> None:
    """Set titles and limits; the vertical axis is named in the title, where it needs no turned text."""
    axes.set_title(title, loc="left")
    axes.set(xlabel=x, xlim=(-MARGIN, 1 + MARGIN), ylim=(-MARGIN, 1 + MARGIN))
    axes.grid(visible=True, color=colors.line)
    axes.set_axisbelow(True)
