"""Accuracy, latency and size of every raced candidate, with those that no other beats in all three (Pareto front)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.reporting import timeline
from gauntlet.reporting.drawing import INK, LINE, MARKERS, MUTED, PAPER, SERIES, embed, short, themed
from gauntlet.reporting.text_format import fixed, metric_name, milliseconds, percent, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT_PX = 330
LEGEND_ROW_PX = 22
COLUMNS = 3
ROOM = 0.08
"""Margin of an axis, as a share of its range."""
EXACT_DB = 90.0
"""From this signal to noise on, outputs differ by the rounding of float32 alone."""
MAX_MS, MAX_QUALITY = 1e9, 1e4
"""Slower candidates are not drawn; a larger or smaller quality is drawn as this one."""


@dataclass(frozen=True)
class ParetoPoint:
    """A candidate at the deciding batch size, on its target."""

    name: str
    latency_ms: float
    size_bytes: int
    quality: float
    """Accuracy, or signal to noise in dB; infinite for outputs without any noise."""

    def dominates(self, other: "ParetoPoint") -> bool:
        """Return whether it is at least as good in all three, and better in one."""
        own, others = self._costs(), other._costs()
        return own != others and all(a <= b for a, b in zip(own, others, strict=True))

    def _costs(self) -> tuple[float, float, float]:
        return self.latency_ms, float(self.size_bytes), -self.quality


@dataclass(frozen=True)
class ParetoChart:
    """The points of a run, fastest first."""

    points: tuple[ParetoPoint, ...]
    metric: str | None
    """Metric of the quality; None for signal to noise."""

    @property
    def front(self) -> tuple[ParetoPoint, ...]:
        """The points that no other dominates."""
        return tuple(point for point in self.points if not any(other.dominates(point) for other in self.points))

    def quality_text(self, point: ParetoPoint) -> str:
        """Return a point's quality as text."""
        if self.metric is not None:
            return percent(point.quality)
        return f"{fixed(point.quality, 1)} dB" if math.isfinite(point.quality) else "no noise"


def chart(report: RunReport) -> ParetoChart | None:
    """Return the points of a run; None where fewer than two candidates were raced.

    The quality is the run's metric where it differs between candidates, else the signal to noise of the outputs.
    """
    raced = [candidate for candidate in report.candidates if _is_raced(report, candidate)]
    if len(raced) < 2:
        return None
    accuracies = [candidate.accuracy for candidate in raced]
    known = all(value is not None and math.isfinite(value) for value in accuracies)
    metric = report.metric if known and len(set(accuracies)) > 1 else None
    return ParetoChart(tuple(sorted(_points(report, raced, metric), key=lambda point: point.latency_ms)), metric)


def draw(report: RunReport) -> Markup | None:
    """Return the plot as SVG, or None where fewer than two candidates were raced."""
    pareto = chart(report)
    if pareto is None:
        return None
    listed = min(len(pareto.front), len(SERIES) + 1) + (len(pareto.points) > len(pareto.front))
    with themed(HEIGHT_PX + LEGEND_ROW_PX * math.ceil(listed / COLUMNS)) as figure:
        _fill(figure, pareto, report.winner)
        front = {point.name for point in pareto.front}
        texts = (
            f"{point.name}: {milliseconds(point.latency_ms)}, {size(point.size_bytes)}, {pareto.quality_text(point)}"
            + ("" if point.name in front else ", dominated")
            for point in pareto.points
        )
        return embed(figure, "pareto", f"Accuracy, latency and size. {'; '.join(texts)}.")


def _is_raced(report: RunReport, candidate: CandidateEntry) -> bool:
    row = timeline.deciding_row(report, candidate.side_by_side)
    return row is not None and 0 < row.median_ms < MAX_MS and (candidate.size_bytes or 0) > 0


def _points(report: RunReport, raced: Sequence[CandidateEntry], metric: str | None) -> Iterator[ParetoPoint]:
    for candidate in raced:
        row = timeline.deciding_row(report, candidate.side_by_side)
        quality = candidate.accuracy if metric is not None else candidate.sqnr_db
        if quality is None or math.isnan(quality) or (metric is None and quality >= EXACT_DB):
            quality = math.inf  # the reference and its graph passes have no noise
        else:
            quality = min(max(quality, -MAX_QUALITY), MAX_QUALITY)
        if row is not None:
            yield ParetoPoint(candidate.name, row.median_ms, candidate.size_bytes or 0, quality)


def _fill(figure: "Figure", pareto: ParetoChart, winner: str | None) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    front = pareto.front
    top = _quality_axis(left, pareto)
    for axes, label in ((left, "latency of one call, ms"), (right, "file size, MB")):
        axes.set_xlabel(label)
        axes.grid(visible=True, color=LINE)
    for point in pareto.points:
        place = front.index(point) if point in front[: len(SERIES)] else None
        color = MUTED if place is None else SERIES[place]
        look: dict[str, Any] = {"color": color, "markerfacecolor": color if point in front else PAPER, "markersize": 9}
        shape = "o" if place is None else MARKERS[place]
        y = min(point.quality, top)
        for axes, x in ((left, point.latency_ms), (right, point.size_bytes / 1e6)):
            axes.plot(x, y, shape, **look, zorder=2 if place is None else 3)
            if point.name == winner:
                axes.plot(x, y, "o", color=INK, markerfacecolor="none", markersize=17, markeredgewidth=1.5, zorder=4)
        if place is not None:
            label = short(f"{point.name} (winner)" if point.name == winner else point.name, 34)
            left.plot([], [], shape, label=label, **look)
    if len(front) > len(SERIES):
        left.plot([], [], "o", color=MUTED, markersize=9, label=f"{len(front) - len(SERIES)} more")
    if len(front) < len(pareto.points):
        left.plot([], [], "o", color=MUTED, markerfacecolor=PAPER, markersize=9, label="hollow: dominated")
    for axes in (left, right):
        axes.set_xlim(left=0)
    figure.legend(loc="outside upper left", ncols=COLUMNS)


def _quality_axis(axes: "Axes", pareto: ParetoChart) -> float:
    """Set the limits and the label of the quality; return where points without noise are drawn."""
    values = [point.quality for point in pareto.points if math.isfinite(point.quality)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = ROOM * (high - low) or 0.01 * abs(high) or 0.01
    exact = len(values) < len(pareto.points)
    top = high + 2 * room if exact else high
    axes.set_ylim(low - room, top + room)
    if pareto.metric is not None:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.set_ylabel(metric_name(pareto.metric))
    else:
        axes.set_ylabel("SQNR, dB" + ("; at the top: no noise" if exact else ""))
        if not values:
            axes.set_yticks([])
    return top
