"""The numbers behind the forest plot of speed-ups: a scale, its ticks, and where every mark lies.

Horizontal places are percentages, so that the picture takes any width and its text keeps its size; vertical ones are
pixels.
"""

import math
from dataclasses import dataclass

from tasks.render.format import fixed, speedup
from tasks.run_report import BenchmarkRow, CandidateEntry

EDGES = (1e-3, 1e3)
"""Ratios beyond these are drawn as arrows at the border."""

LOG_FROM = 4.0
"""A range of ratios wider than this is drawn on a logarithmic scale."""

LEFT_PERCENT, RIGHT_PERCENT = 3.0, 97.0
TOP_PX, NAME_PX, MARK_PX, GAP_PX, AXIS_PX = 30, 24, 17, 9, 50


@dataclass(frozen=True)
class Scale:
    """From a ratio to its place."""

    low: float
    high: float
    log: bool

    def percent(self, ratio: float) -> float:
        """Return the place of a ratio in percent of the width; what lies outside is put on the border."""
        clipped = min(max(ratio, self.low), self.high)
        if self.log:
            share = math.log(clipped / self.low) / math.log(self.high / self.low)
        else:
            share = (clipped - self.low) / (self.high - self.low)
        return round(LEFT_PERCENT + share * (RIGHT_PERCENT - LEFT_PERCENT), 3)

    def covers(self, ratio: float) -> bool:
        """Tell whether a ratio lies on the scale."""
        return self.low <= ratio <= self.high


@dataclass(frozen=True)
class Tick:
    """A labelled place on the axis."""

    label: str
    x_percent: float


@dataclass(frozen=True)
class Mark:
    """One measurement: a point, and its interval as a line. `cut_low` and `cut_high`: the line goes on out there."""

    series: int
    y_px: int
    x_percent: float
    low_percent: float
    high_percent: float
    cut_low: bool
    cut_high: bool
    resolved: bool
    text: str


@dataclass(frozen=True)
class Row:
    """One candidate."""

    name: str
    rejected: bool
    y_px: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Forest:
    """The whole picture."""

    log: bool
    ticks: tuple[Tick, ...]
    reference_percent: float
    needed: Tick | None
    series: tuple[str, ...]
    rows: tuple[Row, ...]
    top_px: int
    axis_px: int
    height_px: int


def plan(candidates: tuple[CandidateEntry, ...], needed: float | None = None) -> Forest | None:
    """Lay the plot out, or return None where nothing was measured against the reference.

    Args:
        candidates: one row each, in this order.
        needed: the speed-up that a candidate had to prove.
    """
    measured = [(c, [r for r in c.benchmark if r.verdict != "reference" and r.speedup > 0]) for c in candidates]
    measured = [(c, rows) for c, rows in measured if rows]
    if not measured:
        return None
    every = [row for _, rows in measured for row in rows]
    scale = fit([ratio for row in every for ratio in (row.speedup, row.speedup_low, row.speedup_high)])
    keys = sorted({(row.target, row.batch) for row in every})
    y_px, laid_out = TOP_PX, []
    for candidate, rows in measured:
        rows = sorted(rows, key=lambda row: (row.target, row.batch))
        marks = (
            _mark(row, keys.index((row.target, row.batch)), y_px + NAME_PX + MARK_PX * i, scale)
            for i, row in enumerate(rows)
        )
        laid_out.append(Row(candidate.name, candidate.status == "rejected", y_px + 12, tuple(marks)))
        y_px += NAME_PX + MARK_PX * len(rows) + GAP_PX
    return Forest(
        log=scale.log,
        ticks=tuple(Tick(f"{ratio:g}x", scale.percent(ratio)) for ratio in ticks(scale)),
        reference_percent=scale.percent(1.0),
        needed=Tick(f"{needed:.3g}x", scale.percent(needed)) if needed and scale.covers(needed) else None,
        series=_labels(keys),
        rows=tuple(laid_out),
        top_px=TOP_PX,
        axis_px=y_px,
        height_px=y_px + AXIS_PX,
    )


def fit(ratios: list[float]) -> Scale:
    """Return a scale that holds 1.0 and all ratios that can be drawn, with a little room at both ends."""
    usable = [min(max(ratio, EDGES[0]), EDGES[1]) for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    low, high = min([1.0, *usable]), max([1.0, *usable])
    if high / low > LOG_FROM:
        room = (high / low) ** 0.05
        return Scale(low / room, high * room, log=True)
    room = max(0.06 * (high - low), 0.02)
    return Scale(low - room, high + room, log=False)


def ticks(scale: Scale) -> list[float]:
    """Return between three and about eight round ratios on the scale; 1.0 is always one of them."""
    if not scale.log:
        steps = [m * 10.0**e for e in range(-3, 1) for m in (1, 2, 2.5, 5)]
        step = next((s for s in steps if (scale.high - scale.low) / s <= 7), 1.0)
        first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
        return [round(n * step, 6) for n in range(first, last + 1)]
    decades = range(-4, 5)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1,)):
        found = [float(f"{d * 10.0**e:.6g}") for e in decades for d in digits if scale.covers(d * 10.0**e)]
        if len(found) <= 7:
            break
    return found


def _mark(row: BenchmarkRow, series: int, y_px: int, scale: Scale) -> Mark:
    low = row.speedup_low if row.speedup_low > 0 else 0.0  # NaN and minus infinity: nothing is known on this side
    high = row.speedup_high if row.speedup_high > 0 else math.inf
    return Mark(
        series=series,
        y_px=y_px,
        x_percent=scale.percent(row.speedup),
        low_percent=scale.percent(low),
        high_percent=scale.percent(high),
        cut_low=not scale.covers(low),
        cut_high=not scale.covers(high),
        resolved=row.verdict != "not resolved",
        text=f"batch {row.batch} on {row.target}: {speedup(row.speedup, row.speedup_low, row.speedup_high)}, "
        f"{_verdict(row)}, median {fixed(row.median_ms, 3)} ms",
    )


def _verdict(row: BenchmarkRow) -> str:
    if row.dropped_as is None:
        return row.verdict
    return f"{row.dropped_as} than {row.dropped_for} (dropped after round {row.dropped_after_round})"


def _labels(keys: list[tuple[str, int]]) -> tuple[str, ...]:
    one_target = len({target for target, _ in keys}) == 1
    return tuple(f"batch {batch}" if one_target else f"{target}, batch {batch}" for target, batch in keys)
