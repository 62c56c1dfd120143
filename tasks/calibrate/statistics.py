"""What every activation's values are like, in memory that does not grow with the number of samples.

Two passes: the first finds each tensor's lowest and highest value, with reductions inside the graph; the second counts
the values in histograms over exactly these ranges. So the counts are those of one histogram over all values at once,
which is what ORT makes from all activations of all samples together.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.calibrate.feeds import Feeds
from tasks.calibrate.taps import REDUCTIONS, Values, reduced, tapped
from tasks.data.dataset import Split
from tasks.ranges.histogram import Counts, Histogram, Statistics
from tasks.runtime.threads import usable_threads
from tasks.workspace import Workspace

BUDGET_BYTES = 256_000_000
"""Activations of one call, all together; the runtime may hold them twice, and the second pass asks for them."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Extremes:
    """The first pass up to some sample: one entry a tensor in each array."""

    lowest: Floats
    highest: Floats
    has_nan: npt.NDArray[np.bool_]
    sizes: npt.NDArray[np.int64]

    def joined(self, other: "Extremes") -> "Extremes":
        """Return the extremes of both; `sizes` are values in the largest call."""
        return Extremes(
            np.fmin(self.lowest, other.lowest),
            np.fmax(self.highest, other.highest),
            self.has_nan | other.has_nan,
            np.maximum(self.sizes, other.sizes),
        )

    def at(self, place: int, limit: np.float32, counts: Counts | None) -> Statistics:
        """Return one tensor's statistics; zeros where it never had a value."""
        if self.sizes[place] == 0:
            return Statistics(np.float32(0), np.float32(0), np.float32(0))
        return Statistics(self.lowest[place], self.highest[place], limit, counts)


@dataclass(frozen=True)
class Collected:
    """The statistics of the tensors that held only numbers, after some of the samples and after all."""

    samples: int
    after: Mapping[int, Mapping[str, Statistics]]
    non_finite: tuple[str, ...]


def collect(
    out: Workspace,
    prepared: Path,
    values: Values,
    split: Split,
    wanted: int,
    *,
    with_counts: bool,
    budget_bytes: int = BUDGET_BYTES,
) -> Collected:
    """Run the samples through the model, once, or twice for histograms.

    Args:
        out: where progress goes.
        prepared: the model.
        values: the tensors to look at.
        split: the samples.
        wanted: how many of them, at most.
        with_counts: whether to make histograms.
        budget_bytes: of activations that a call may have; one sample is always allowed, and comes in parts.

    Raises:
        StageError: when the samples do not fit the model, or the runtime fails.
    """
    feeds, marks = _first_pass(out, prepared, values, split, wanted, budget_bytes, passes=1 + with_counts)
    if not values:
        return Collected(feeds.samples, {feeds.samples: {}}, ())
    last = marks[feeds.samples]
    limits = np.maximum(np.abs(last.lowest), np.abs(last.highest))
    finite = ~last.has_nan & (np.isfinite(limits) | (last.sizes == 0))
    counts: dict[int, dict[str, Counts]] = {mark: {} for mark in feeds.marks}
    if with_counts:
        histograms = {name: Histogram(limits[place]) for place, name in enumerate(values) if finite[place]}
        histograms = {name: histogram for name, histogram in histograms.items() if histogram.resolves}
        sizes = dict(zip(values, (last.sizes * 4).tolist(), strict=True))
        for group in _groups({name: sizes[name] for name in histograms}, budget_bytes):
            for seen in _second_pass(prepared, {name: values[name] for name in group}, feeds, histograms):
                for mark in feeds.passed(seen):
                    if group[0] not in counts[mark]:
                        counts[mark] |= {name: histograms[name].counts.copy() for name in group}
                out.progress(feeds.samples + seen, 2 * feeds.samples, "images")

    def after(mark: int) -> dict[str, Statistics]:
        places = [(place, name) for place, name in enumerate(values) if finite[place]]
        return {name: marks[mark].at(place, limits[place], counts[mark].get(name)) for place, name in places}

    bad = tuple(name for name, good in zip(values, finite, strict=True) if not good)
    return Collected(feeds.samples, {mark: after(mark) for mark in marks}, bad)


def _first_pass(
    out: Workspace, prepared: Path, values: Values, split: Split, wanted: int, budget_bytes: int, *, passes: int
) -> tuple[Feeds, dict[int, Extremes]]:
    """Return the samples, as many in a call as the memory allows, and the extremes at their marks."""
    marks: dict[int, Extremes] = {}
    total: Extremes | None = None
    with reduced(prepared, values) as (session, names):
        feeds = Feeds.of(session, split, wanted)
        if not names:
            return feeds, marks
        arrays, _ = next(feeds.run(session, names, feeds.smallest_batch))
        bytes_a_sample = _extremes([arrays[name] for name in names]).sizes.sum() * 4 / feeds.smallest_batch
        feeds = feeds.limited(int(budget_bytes // max(1, bytes_a_sample)))
        for arrays, seen in feeds.run(session, names, feeds.batch):
            call = _extremes([arrays[name] for name in names])
            total = total.joined(call) if total else call
            for mark in feeds.passed(seen):
                marks.setdefault(mark, total)
            out.progress(seen, passes * feeds.samples, "images")
    return feeds, marks


def _extremes(answers: list[npt.NDArray[Any]]) -> Extremes:
    """Return what the answers of one call say: `REDUCTIONS` of each tensor."""
    lows, highs, totals, counts = (answers[n :: len(REDUCTIONS)] for n in range(len(REDUCTIONS)))
    sizes = np.array([count.item() for count in counts])
    # The sum is no number exactly when a value is none; the two others may pass over it.
    low, high, total = (
        np.array([a.item() if size else np.nan for a, size in zip(of, sizes, strict=True)], np.float32)
        for of in (lows, highs, totals)
    )
    return Extremes(low, high, np.isnan(total) & (sizes > 0), sizes)


def _second_pass(prepared: Path, values: Values, feeds: Feeds, histograms: Mapping[str, Histogram]) -> Iterator[int]:
    """Count the values of some tensors; yield the number of samples seen after each call."""
    with tapped(prepared, values) as (session, names), ThreadPoolExecutor(usable_threads()) as pool:
        for arrays, seen in feeds.run(session, names, feeds.batch):
            for _ in pool.map(lambda name, arrays=arrays: histograms[name].add(arrays[name]), values):
                pass
            yield seen


def _groups(bytes_a_call: Mapping[str, int], budget_bytes: int) -> Iterator[list[str]]:
    """Divide the tensors into groups that fit into the budget, where one sample's activations do not."""
    group: list[str] = []
    used = 0
    for name, size in bytes_a_call.items():
        if group and used + size > budget_bytes:
            yield group
            group, used = [], 0
        group.append(name)
        used += size
    if group:
        yield group
