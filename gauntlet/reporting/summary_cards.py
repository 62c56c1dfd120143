"""The winner in four figures."""

from dataclasses import dataclass

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.reporting import text_format as written
from gauntlet.reporting import timeline
from gauntlet.reporting.latency_table import throughput

MAX_OTHERS = 2


@dataclass(frozen=True)
class SummaryCard:
    """One figure with its notes."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


def summary_cards(report: RunReport) -> list[SummaryCard]:
    """Return the winner's figures; none without a winner."""
    best, base = timeline.winner(report), timeline.reference(report)
    if best is None:
        return []
    row, others = timeline.deciding_row(report, best), [base] if base and base is not best else []
    accuracies = tuple(f"{c.name}: {written.percent(c.accuracy)}" for c in others if c.accuracy is not None)
    sizes = tuple(f"{c.name}: {written.size(c.size_bytes)}" for c in others if c.size_bytes is not None)
    quality = SummaryCard(written.metric_name(report.metric), written.percent(best.accuracy), accuracies)
    if words := timeline.differences(report):
        first, _, more = words.partition(", ")
        quality = SummaryCard("Predictions", first, (more,) if more else ())
    elif best.accuracy is None and best.sqnr_db is not None:
        quality = SummaryCard("SQNR", f"{written.fixed(best.sqnr_db, 1)} dB", ("of the worst output and slice",))
    return [
        *(_race(report, row, best) if row else []),
        quality,
        SummaryCard("Size", written.size(best.size_bytes), sizes),
    ]


def _tail(row: BenchmarkRow) -> list[str]:
    """Return the percentiles and the throughput that were measured, in one note."""
    tail = [f"p{p} ≤ {written.milliseconds(bound)}" for p, bound in ((90, row.p90_ms), (99, row.p99_ms)) if bound]
    speed = [f"{throughput(row.images_per_second)} images/s"] if row.images_per_second else []
    return [", ".join([*tail, *speed])] if tail or speed else []


def _race(report: RunReport, row: BenchmarkRow, best: CandidateEntry) -> list[SummaryCard]:
    others = [other for other in best.benchmark if other is not row and other.target == row.target][:MAX_OTHERS]
    times = [f"{written.milliseconds(other.median_ms)} at batch {other.batch}" for other in others]
    median = f"median, batch {row.batch} on {row.target}"
    latency = SummaryCard("Latency", written.milliseconds(row.median_ms), (median, *_tail(row), *times))
    if row.verdict == "reference":
        return [SummaryCard("Speed", "1.00x", ("the reference itself",)), latency]
    interval = f"95 % interval {written.interval(row.speedup_low, row.speedup_high)}, batch {row.batch}"
    ratios = [f"{written.speedup(o.speedup, o.speedup_low, o.speedup_high)} at batch {o.batch}" for o in others]
    beside = [note] if (note := report.outcome.beside) else []
    return [SummaryCard("Speed", written.ratio(row.speedup), (interval, *beside, *ratios)), latency]
