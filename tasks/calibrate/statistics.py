"""What every activation's values are like, in memory that does not grow with the number of samples.

Two passes: the first finds each tensor's lowest and highest value; the second counts the values in histograms over
exactly these ranges. So the counts are those of one histogram over all values at once, which is what ORT makes from all
activations of all samples together. Where few samples have few activations, the first pass keeps them for the second.
Else the network runs twice, and the first time reductions inside the graph find the ends.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.calibrate.feeds import Feeds
from tasks.calibrate.taps import REDUCTIONS, Values, reduced, tapped
from tasks.data.dataset import Arrays, Split
from tasks.ranges.histogram import Counts, Histogram, Statistics
from tasks.runtime.threads import usable_threads
from tasks.workspace import Workspace

BUDGET_BYTES = 256_000_000
"""Activations of one call, all together; the runtime may hold them twice, and the second pass asks for them."""
KEPT_BYTES = 800_000_000
"""Activations of all samples, at the most, that are kept from the first pass to the second."""

Floats = npt.NDArray[np.float32]
Answers = tuple[Arrays, int]
"""The tensors of one call by name, and how many samples have been seen after it."""


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
    kept_bytes: int = KEPT_BYTES,
) -> Collected:
    """Run the samples through the model, once, or twice for histograms of more values than are kept.

    Args:
        out: where progress goes.
        prepared: the model.
        values: the tensors to look at.
        split: the samples.
        wanted: how many of them, at most.
        with_counts: whether to make histograms.
        budget_bytes: of activations that a call may have; one sample is always allowed, and comes in parts.
        kept_bytes: of activations that may be kept, those of all samples.

    Raises:
        StageError: when the samples do not fit the model, or the runtime fails.
    """
    limit = kept_bytes if with_counts else 0
    feeds, marks, kept = _first_pass(out, prepared, values, split, wanted, budget_bytes, limit, passes=1 + with_counts)
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
            again = kept or _activations(prepared, {name: values[name] for name in group}, feeds)
            for seen in _second_pass(again, {name: histograms[name] for name in group}):
                for mark in feeds.passed(seen):
                    if group[0] not in counts[mark]:
                        counts[mark] |= {name: histograms[name].counts.copy() for name in group}
                out.progress(feeds.samples + seen, 2 * feeds.samples, "images")

    def after(mark: int) -> dict[str, Statistics]:
        places = [(place, name) for place, name in enumerate(values) if finite[place]]
        return {name: marks[mark].at(place, limits[place], counts[mark].get(name)) for place, name in places}

    bad = tuple(name for name, good in zip(values, finite, strict=True) if not good)
    return Collected(feeds.samples, {mark: after(mark) for mark in marks}, bad)


def _planned(feeds: Feeds, session: Any, names: list[str], budget_bytes: int) -> tuple[Feeds, float]:
    """Return the samples, as many in a call as the memory allows, and the bytes of one sample's activations."""
    if not names:
        return feeds, 0
    answers, _ = next(feeds.run(session, names, feeds.smallest_batch))
    sample_bytes = float(_reductions(answers, names).sizes.sum()) * 4 / feeds.smallest_batch
    return feeds.limited(int(budget_bytes // max(1, sample_bytes))), sample_bytes


def _first_pass(
    out: Workspace,
    prepared: Path,
    values: Values,
    split: Split,
    wanted: int,
    budget_bytes: int,
    kept_bytes: int,
    *,
    passes: int,
) -> tuple[Feeds, dict[int, Extremes], list[Answers]]:
    """Return the samples, the extremes at their marks, and all activations where they fit; its session is gone then."""
    kept: list[Answers] = []
    marks: dict[int, Extremes] = {}
    total: Extremes | None = None
    with reduced(prepared, values) as (session, names):
        feeds, sample_bytes = _planned(Feeds.of(session, split, wanted), session, names, budget_bytes)
        if not names:
            return feeds, marks, kept
        if feeds.samples * sample_bytes <= kept_bytes:
            calls = _kept(_activations(prepared, values, feeds), values, kept)
        else:
            calls = ((_reductions(found, names), seen) for found, seen in feeds.run(session, names, feeds.batch))
        for call, seen in calls:
            total = total.joined(call) if total else call
            for mark in feeds.passed(seen):
                marks.setdefault(mark, total)
            out.progress(seen, passes * feeds.samples, "images")
    return feeds, marks, kept


def _reductions(answers: Arrays, names: list[str]) -> Extremes:
    """Return what the answers of one call say: `REDUCTIONS` of each tensor."""
    found = [answers[name] for name in names]
    lows, highs, totals, counts = (found[n :: len(REDUCTIONS)] for n in range(len(REDUCTIONS)))
    sizes = np.array([count.item() for count in counts])
    # The sum is no number exactly when a value is none; the two others may pass over it.
    low, high, total = (
        np.array([a.item() if size else np.nan for a, size in zip(of, sizes, strict=True)], np.float32)
        for of in (lows, highs, totals)
    )
    return Extremes(low, high, np.isnan(total) & (sizes > 0), sizes)


def _activations(prepared: Path, values: Values, feeds: Feeds) -> Iterator[Answers]:
    """Yield the tensors themselves, call by call."""
    with tapped(prepared, values) as (session, names):
        yield from feeds.run(session, names, feeds.batch)


def _kept(calls: Iterable[Answers], values: Values, kept: list[Answers]) -> Iterator[tuple[Extremes, int]]:
    """Keep the tensors, and yield the extremes of each call."""
    with np.errstate(invalid="ignore"):  # what is no number is told by `has_nan`
        for answers, seen in calls:
            kept.append((answers, seen))
            arrays = [answers[name] for name in values]
            sizes = np.array([array.size for array in arrays])
            low, high = (
                np.array([end(array) if array.size else np.nan for array in arrays], np.float32)
                for end in (np.min, np.max)
            )
            yield Extremes(low, high, np.isnan(low) & (sizes > 0), sizes), seen


def _second_pass(calls: Iterable[Answers], histograms: Mapping[str, Histogram]) -> Iterator[int]:
    """Count the values of some tensors; yield the number of samples seen after each call."""
    with ThreadPoolExecutor(usable_threads()) as pool:
        for arrays, seen in calls:
            for _ in pool.map(lambda name, arrays=arrays: histograms[name].add(arrays[name]), histograms):
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
