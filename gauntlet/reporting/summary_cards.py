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
    others = [base] if base and base is not best else []
    accuracies = tuple(f"{c.name}: {written.percent(c.accuracy)}" for c in others if c.accuracy is not None)
    sizes = tuple(f"{c.name}: {written.size(c.size_bytes)}" for c in others if c.size_bytes is not None)
    quality = SummaryCard(written.metric_name(report.metric), written.percent(best.accuracy), accuracies)
    if words := timeline.differences(report):
        first, _, more = words.partition(", ")
        quality = SummaryCard("Predictions", first, (more,) if more else ())
    elif best.accuracy is None and best.sqnr_db is not None:
        quality = SummaryCard("SQNR", f"{written.fixed(best.sqnr_db, 1)} dB", ("of the worst output and slice",))
    cards = [*_race(report, best), quality, SummaryCard("Size", written.size(best.size_bytes), sizes)]
    return [card for card in cards if card.value != written.MISSING]


def _tail(row: BenchmarkRow) -> list[str]:
    """Return the percentiles and the throughput that were measured, in one note."""
    tail = [f"p{p} ≤ {written.milliseconds(bound)}" for p, bound in ((90, row.p90_ms), (99, row.p99_ms)) if bound]
    speed = [f"{throughput(row.images_per_second)} samples/s"] if row.images_per_second else []
    return [", ".join([*tail, *speed])] if tail or speed else []


def _base(report: RunReport, raced: BenchmarkRow) -> list[str]:
    """Return the latency that the speed-up is over; its target, where that is another one."""
    base, row = timeline.reference(report), timeline.reference_rows(report).get(raced.batch)
    if base is None or row is None or row is raced:
        return []
    place = "" if row.target == raced.target else f" on {row.target}"
    return [f"{base.name}{place}: {written.milliseconds(row.median_ms)}"]


def _race(report: RunReport, best: CandidateEntry) -> list[SummaryCard]:
    """Return the speed-up, as confirmed, and the latency beside that of the reference, of the race of all."""
    row, raced = timeline.deciding_row(report, best.benchmark), timeline.deciding_row(report, best.side_by_side)
    if row is None or raced is None:
        return []
    times = [f"{written.milliseconds(o.median_ms)} at batch {o.batch}" for o in _further(best.side_by_side, raced)]
    median = f"median, batch {raced.batch} on {raced.target}"
    notes = (median, *_base(report, raced), *_tail(raced), *times)
    alone = [f"{written.milliseconds(row.median_ms)} raced again alone"] if best.first_race else []
    latency = SummaryCard("Latency", written.milliseconds(raced.median_ms), (*notes, *alone))
    if row.verdict == "reference":
        return [SummaryCard("Speed", "1.00x", ("the reference itself",)), latency]
    further = _further(best.benchmark, row)
    ratios = [f"{timeline.speedup_of(o)} at batch {o.batch}" for o in further]
    return [SummaryCard("Speed", row.mark + written.ratio(row.speedup), (*_proof(report, row, best), *ratios)), latency]


def _further(rows: tuple[BenchmarkRow, ...], row: BenchmarkRow) -> list[BenchmarkRow]:
    """Return the rows at other batch sizes on the same target."""
    return [other for other in rows if other is not row and other.target == row.target][:MAX_OTHERS]


def _proof(report: RunReport, row: BenchmarkRow, best: CandidateEntry) -> list[str]:
    """Return the interval of the speed-up, and the race that it is of."""
    interval = f"95 % interval {written.interval(row.speedup_low, row.speedup_high)}, batch {row.batch}"
    noise = report.outcome.confirmation_noise
    alone = [f"raced again alone, noise {written.percent(noise)}"] if best.first_race and noise is not None else []
    return [interval, *alone, *([note] if (note := report.outcome.beside) else [])]
