"""Forest plot of every candidate's speed-ups over the reference, with their 95 % intervals."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry
from gauntlet.reporting import timeline
from gauntlet.reporting.drawing import INK, LINE, MARKERS, MUTED, NARROW_PX, PAPER, SERIES, embed, short, themed
from gauntlet.reporting.text_format import milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EDGES = (1e-3, 1e3)
"""Ratios beyond these are drawn as arrows at the border."""
LOG_FROM = 4.0
"""A range of ratios wider than this is drawn on a logarithmic scale."""
MARK_PX, AROUND_PX = 19, 105
GAP = 0.5
"""Between two candidates, in marks."""

Measured = list[tuple[CandidateEntry, list[BenchmarkRow]]]


def draw(candidates: Sequence[CandidateEntry], reference: str, required: float | None = None) -> Markup | None:
    """Return the plot, with a line at the required speed-up, or None if nothing was measured against the reference."""
    rows_of = [(c, [r for r in c.side_by_side if r.verdict != "reference" and r.speedup > 0]) for c in candidates]
    measured = [(c, sorted(rows, key=lambda row: (row.target, row.batch))) for c, rows in rows_of if rows]
    if not measured:
        return None
    marks = sum(1 + len(rows) + GAP for _, rows in measured)
    with themed(AROUND_PX + MARK_PX * marks, NARROW_PX) as figure:
        _fill(figure, measured, reference, required)
        texts = (f"{c.name}, batch {row.batch} on {row.target}: {_words(row)}" for c, rows in measured for row in rows)
        return embed(figure, "forest", f"Speed-up over the reference, with 95 % intervals. {'; '.join(texts)}.")


def limits(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that contains 1.0 and all drawable ratios, with a margin."""
    usable = [min(max(ratio, EDGES[0]), EDGES[1]) for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    low, high = min([1.0, *usable]), max([1.0, *usable])
    if high / low > LOG_FROM:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = max(0.06 * (high - low), 0.02)
    return low - room, high + room


def _fill(figure: "Figure", measured: Measured, reference: str, required: float | None) -> None:
    axes = figure.subplots()
    every = [row for _, rows in measured for row in rows]
    low, high = limits([ratio for row in every for ratio in (row.speedup, row.speedup_low, row.speedup_high)])
    series = sorted({(row.target, row.batch) for row in every})
    one_target = len({target for target, _ in series}) == 1
    for number, (target, batch) in enumerate(series):
        label = f"batch {batch}" if one_target else f"{target}, batch {batch}"
        axes.plot([], [], MARKERS[number % len(MARKERS)], color=SERIES[number % len(SERIES)], label=short(label))
    y, at_the_left = 0.0, ("axes fraction", "data")
    for candidate, rows in measured:
        name = axes.annotate(short(candidate.name), (0, y), xycoords=at_the_left, va="center", annotation_clip=False)
        name.set_in_layout(False)
        name.set_bbox({"facecolor": PAPER, "linewidth": 0, "pad": 1})  # over the lines, which would strike it out
        y += 1
        for row in rows:
            _mark(axes, y, row, series.index((row.target, row.batch)), (low, high))
            y += 1
        y += GAP
    axes.axvline(1.0, color=INK, linewidth=1.5, zorder=1)
    if required is not None and low <= required <= high:
        axes.axvline(required, color=MUTED, linestyle=(0, (4, 3)), label=f"required: {required:.3g}x", zorder=1)
    if any(row.verdict == "not resolved" for row in every):
        axes.plot([], [], "o", color=MUTED, markerfacecolor=PAPER, label="hollow: not resolved")
    axes.set_yticks([])
    axes.set_ylim(y - GAP, -1 + GAP / 2)
    _scale(axes, low, high, short(reference))
    figure.legend(loc="outside upper left", ncols=2)


def _mark(axes: "Axes", y: float, row: BenchmarkRow, series: int, ends: tuple[float, float]) -> None:
    """Draw one interval and its middle; an end beyond the axis is an arrow."""
    low = row.speedup_low if row.speedup_low > 0 else 0.0  # NaN and minus infinity: unknown on this side
    high = row.speedup_high if row.speedup_high > 0 else math.inf
    color, shape = SERIES[series % len(SERIES)], MARKERS[series % len(MARKERS)]
    left, middle, right = (min(max(ratio, ends[0]), ends[1]) for ratio in (low, row.speedup, high))
    axes.hlines(y, left, right, color=color, linewidth=2)
    axes.plot(left, y, "|" if low >= ends[0] else "<", color=color, markersize=8)
    axes.plot(right, y, "|" if high <= ends[1] else ">", color=color, markersize=8)
    fill = PAPER if row.verdict == "not resolved" else color
    axes.plot(middle, y, shape, color=color, markerfacecolor=fill, markersize=8, markeredgewidth=2)


def _scale(axes: "Axes", low: float, high: float, reference: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xlabel(f"speed-up over {reference}")
    if high / low > LOG_FROM:
        axes.set_xscale("log")
        subs = (1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5) if high / low < 1000 else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=subs))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"speed-up over {reference}, logarithmic scale")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.set_xlim(low, high)
    axes.grid(visible=True, axis="x", color=LINE)


def _words(row: BenchmarkRow) -> str:
    stop = f"dropped after round {row.stopped_after_round} ({row.stopped_as} than {row.stopped_for})"
    measured = timeline.speedup_of(row)
    return f"{measured}, {stop if row.stopped_as else row.verdict}, median {milliseconds(row.median_ms)}"
