"""Every latency of a run with its mean, percentiles, throughput and memory, the same columns in every view."""

import math
from collections.abc import Iterable

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.reporting import text_format as written
from gauntlet.reporting import timeline

HEADINGS = ("Median", "Mean", "p90", "p99", "Samples/s", "Memory")
NOTE = (
    "p90 and p99 are upper 95 % confidence bounds. Samples/s: one session, calls one after another. "
    "Memory: peak of the process that runs the session, Python included."
)


def cells(row: BenchmarkRow) -> tuple[str, ...]:
    """Return a row's figures in the order of the headings."""
    times = (row.median_ms, row.mean_ms, row.p90_ms, row.p99_ms)
    return (*map(written.milliseconds, times), throughput(row.images_per_second), written.size(row.peak_rss_bytes))


def measured_columns(rows: Iterable[BenchmarkRow]) -> list[int]:
    """Return the places of the headings that some row has a figure for: short calls leave no p99."""
    all_cells = [cells(row) for row in rows]
    return [i for i in range(len(HEADINGS)) if any(figures[i] != written.MISSING for figures in all_cells)]


def throughput(images_per_second: float | None) -> str:
    """Write images a second with three significant digits, and whole from 100 on."""
    whole = images_per_second is not None and 100 <= images_per_second < math.inf
    return written.number(round(images_per_second) if whole and images_per_second else images_per_second, 3)


def lines(report: RunReport) -> list[tuple[str, BenchmarkRow]]:
    """Return every measured row with its candidate's name, in the order of the table of candidates.

    The rows of a confirmation follow those of the race of all: a bundle and MLflow's `best` have their figures.
    """
    rows: list[tuple[str, BenchmarkRow]] = []
    for c in timeline.ordered_candidates(report):
        rows += [(c.name, row) for row in c.side_by_side] + again(c)
    return rows


def again(candidate: CandidateEntry) -> list[tuple[str, BenchmarkRow]]:
    """Return the rows of a candidate's confirmation, if any, named apart from those of the first race."""
    rows = candidate.benchmark if candidate.first_race else ()
    return [(f"{candidate.name}, raced again alone", row) for row in rows if row not in candidate.first_race]
