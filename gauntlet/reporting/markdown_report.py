"""The run on about one screen of GitHub Markdown: for the Prefect page and the MLflow note."""

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.reporting import text_format as written
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import is_web

MOST_ROWS = 30
OPERATORS = written.OPERATORS | {"<": "&lt;", ">": "&gt;"}
ROUND = str.maketrans("[]", "()")
SPECIAL = re.compile(r"[\\`*|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])|^[#+-]|^=(?==*$)|(?<=^\d)[.)](?=\s|$)")
"""Where Markdown would see markup. Brackets and underscores that mean nothing stay, so that the text reads as it is."""


def render_markdown(report: RunReport, store: Path | None = None) -> str:
    """Return the run as Markdown; with the artifact store's folder, files are named with their whole path."""
    obstacles = timeline.blocking_checks(report)
    parts = [f"# {timeline.MARKS[report.verdict]} {escape(report.name)}: {report.verdict}", _outcome(report)]
    if report.reason and not timeline.told_by(obstacles, report.reason):
        parts.append("  \n".join(escape(line) for line in report.reason.splitlines() if line.strip()))
    model = timeline.model_file(report, store or Path())
    if model is not None:
        parts.append(f"Model: {escape(str(model))}")
    if report.candidates:
        parts += ["## Candidates", _candidates(report)]
    failed = [gate for gate in timeline.gates(report) if gate.state != "passed"]
    if failed:
        parts += ["## Checks that did not pass", _checks(failed)]
    steps = timeline.timeline(report)
    if steps:
        parts += ["## Stages", _stages(steps)]
    return "\n\n".join([*parts, _about(report)]) + "\n"


def escape(text: str) -> str:
    """Write foreign text so that it means nothing to Markdown or HTML and fits into one table cell."""
    line = " ".join(written.printable(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(lambda found: "\\" + found.group(0), line)


def _outcome(report: RunReport) -> str:
    if report.verdict == "failed":
        return f"**Stopped at {escape(report.stopped_at)}.**" if report.stopped_at else "**Stopped.**"
    if report.winner is None:
        return "No winner is named."
    best, base = timeline.winner(report), timeline.reference(report)
    facts = [] if best is None else _facts(report, best, None if base is best else base)
    return f"**Winner: {escape(report.winner)}**" + "".join(f" · {fact}" for fact in facts)


def _facts(report: RunReport, best: CandidateEntry, base: CandidateEntry | None) -> list[str]:
    row = timeline.deciding_row(report, best)
    facts = [] if row is None else [f"**{_speedup(row)}** at batch {row.batch} on {escape(row.target)}"]
    for name, text, other in (
        ("accuracy", written.percent(best.accuracy), base and written.percent(base.accuracy)),
        ("", written.size(best.size_bytes), base and written.size(base.size_bytes)),
    ):
        compared = f" ({escape(base.name)}: {other})" if base and other != written.MISSING else ""
        facts.append(f"{text} {name}".rstrip() + compared)
    return facts


def _candidates(report: RunReport) -> str:
    head = ("Candidate", "Status", "Accuracy", "SQNR, dB", "Size", "Batch", "Median", "Speed-up [95 %]", "Reason")
    return _table(
        head, "llrrrrrrl", [_candidate(report, candidate) for candidate in timeline.ordered_candidates(report)]
    )


def _candidate(report: RunReport, candidate: CandidateEntry) -> tuple[str, ...]:
    won = candidate.name == report.winner
    row = timeline.deciding_row(report, candidate)
    return (
        f"**{escape(candidate.name)}**" if won else escape(candidate.name),
        "✓ winner" if won else {"accepted": "✓ accepted", "rejected": "✗ rejected"}[candidate.status],
        written.percent(candidate.accuracy),
        written.fixed(candidate.sqnr_db, 1),
        written.size(candidate.size_bytes),
        str(row.batch) if row else written.MISSING,
        written.milliseconds(row.median_ms) if row else written.MISSING,
        _speedup(row) if row else written.MISSING,
        escape(candidate.reason),
    )


def _checks(gates: list[timeline.CheckOutcome]) -> str:
    rows = []
    for gate in gates:
        check = gate.check
        value, limit = written.pair(check.value, check.limit)
        unit = f" {escape(check.unit)}" if check.unit else ""
        told = [check.detail] + ([f"Overridden: {check.override}"] if check.override is not None else [])
        rows.append(
            (
                f"{timeline.MARKS[gate.state]} {gate.state}",
                escape(check.name),
                written.MISSING if gate.candidate is None else escape(gate.candidate),
                "missing" if check.value is None else value + unit,
                f"{OPERATORS[check.op]} {limit}{unit}",
                escape("; ".join(text for text in told if text)) or written.MISSING,
                escape(check.remedy) or written.MISSING,
            )
        )
    return _table(("Result", "Check", "Candidate", "Value", "Must be", "Evidence", "Fix"), "lllrrll", rows)


def _stages(steps: list[timeline.TimelineStep]) -> str:
    rows = [
        (
            escape(s.stage),
            f"{timeline.MARKS[s.state]} {s.state}",
            written.duration(s.seconds),
            s.note or written.MISSING,
        )
        for s in steps
    ]
    return _table(("Stage", "State", "Took", "Note"), "llrl", rows)


def _about(report: RunReport) -> str:
    links = [
        f"[{escape(name.translate(ROUND)) or 'link'}]({quote(url, safe=':/?#&=%@+,;', errors='replace')})"
        for name, url in report.links.items()
        if is_web(url)
    ]
    about = [f"Run {escape(report.run_id)}", escape(written.format_time(report.started_at))]
    return " · ".join([*about, f"took {written.duration(report.seconds)}", *links])


def _speedup(row: BenchmarkRow) -> str:
    text = written.speedup(row.speedup, row.speedup_low, row.speedup_high)
    return "1.00x" if row.verdict == "reference" else text


def _table(head: tuple[str, ...], align: str, rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    rule = tuple("---:" if side == "r" else "---" for side in align)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows[:MOST_ROWS])]
    more = f"\n\n{len(rows) - MOST_ROWS} more rows are in the HTML report." if len(rows) > MOST_ROWS else ""
    return "\n".join(lines) + more
