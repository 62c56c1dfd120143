"""The winner in four figures: what a reader wants before anything else."""

from dataclasses import dataclass

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.reporting import text_format as written
from gauntlet.reporting import timeline

MOST_OTHERS = 2


@dataclass(frozen=True)
class SummaryCard:
    """One figure, and what it is to be read with."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


def summary_cards(report: RunReport) -> list[SummaryCard]:
    """Return the winner's figures, or none where nobody won."""
    best, base = timeline.winner(report), timeline.reference(report)
    if best is None:
        return []
    row = timeline.deciding_row(report, best)
    return ([] if row is None else _race(row, best)) + _cost(best, None if base is best else base)


def _race(row: BenchmarkRow, best: CandidateEntry) -> list[SummaryCard]:
    others = [other for other in best.benchmark if other is not row and other.target == row.target][:MOST_OTHERS]
    place = f"batch {row.batch} on {row.target}"
    times = [f"{written.milliseconds(other.median_ms)} at batch {other.batch}" for other in others]
    latency = SummaryCard("Latency", written.milliseconds(row.median_ms), (f"median, {place}", *times))
    if row.verdict == "reference":
        return [SummaryCard("Speed", "1.00x", ("the reference itself",)), latency]
    interval = f"95 % interval {written.interval(row.speedup_low, row.speedup_high)}, batch {row.batch}"
    ratios = [f"{written.speedup(o.speedup, o.speedup_low, o.speedup_high)} at batch {o.batch}" for o in others]
    return [SummaryCard("Speed", written.ratio(row.speedup), (interval, *ratios)), latency]


def _cost(best: CandidateEntry, base: CandidateEntry | None) -> list[SummaryCard]:
    accuracy = () if base is None or base.accuracy is None else (f"{base.name}: {written.percent(base.accuracy)}",)
    size = () if base is None or base.size_bytes is None else (f"{base.name}: {written.size(base.size_bytes)}",)
    return [
        SummaryCard("Accuracy", written.percent(best.accuracy), accuracy),
        SummaryCard("Size", written.size(best.size_bytes), size),
    ]
