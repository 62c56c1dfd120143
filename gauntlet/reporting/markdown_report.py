"""Render a run as Markdown of about one screen, for the Prefect page and the MLflow note."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.reporting import latency_table, timeline
from gauntlet.reporting import text_format as written
from gauntlet.reporting.section import Section, sections
from gauntlet.reporting.text_format import MISSING, is_web

MAX_ROWS, MAX_OBSTACLES = 30, 6
OPERATORS = written.OPERATORS | {"<": "&lt;", ">": "&gt;"}
ROUND = str.maketrans("[]", "()")
SPECIAL = re.compile(r"[\\`*|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])|^[#+-]|^=(?==*$)|(?<=^\d)[.)](?=\s|$)")
"""Characters that are markup where they stand. Brackets and underscores that are not stay as they are."""


def render_markdown(report: RunReport, store: Path | None = None) -> str:
    """Return the run as Markdown; with the artifact store's folder, file paths are absolute."""
    parts = [f"# {timeline.MARKS[report.verdict]} {escape(report.name)}: {report.verdict}", _outcome(report)]
    if reason := timeline.own_reason(report):
        parts.append("  \n".join(escape(line) for line in reason.splitlines() if line.strip()))
    obstacles = timeline.blocking_checks(report)
    if obstacles:
        parts += ["## What stopped the run", "\n".join(map(_obstacle, obstacles[:MAX_OBSTACLES]))]
    if model := timeline.model_file(report, store or Path()):
        parts.append(f"Model: {escape(str(model))}")
    if bundle := timeline.bundle_file(report, store or Path()):
        commands = ", ".join(f"`{command}`" for command in timeline.bundle_uses(report))
        parts.append(f"Bundle: {escape(str(bundle))}  \nUse it: {commands}")
    if report.candidates:
        parts += ["## Candidates", _candidates(report)]
    if measured := latency_table.lines(report):
        parts += ["## Latency", _latencies(measured), latency_table.NOTE]
    for section in sections(report).values():
        parts += _brought(section)
    parts += _sections(report)
    told = obstacles[:MAX_OBSTACLES]
    if failed := [gate for gate in timeline.gates(report) if gate.state != "passed" and gate not in told]:
        head = ("Result", "Check", "Candidate", "Value", "Must be", "Evidence", "Fix")
        parts += ["## Checks that did not pass", _table(head, "lllrrll", [_check(gate) for gate in failed])]
    if steps := timeline.timeline(report):
        rows = [
            (escape(s.stage), f"{timeline.MARKS[s.state]} {s.state}", written.duration(s.seconds), s.note or MISSING)
            for s in steps
        ]
        parts += ["## Stages", _table(("Stage", "State", "Took", "Note"), "llrl", rows)]
    return "\n\n".join([*parts, _about(report)]) + "\n"


def escape(text: str) -> str:
    """Return text without meaning in Markdown or HTML, in one line."""
    line = " ".join(written.printable(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(lambda match: "\\" + match.group(0), line)


def _outcome(report: RunReport) -> str:
    if report.verdict != "passed":
        word = "Cancelled" if report.verdict == "cancelled" else "Stopped"
        return f"**{word} at {escape(report.stopped_at)}.**" if report.stopped_at else f"**{word}.**"
    if report.winner is None:
        return "No winner."
    best, base = timeline.winner(report), timeline.reference(report)
    facts = [] if best is None else _facts(report, best, None if base is best else base)
    return f"**Winner: {escape(report.winner)}**" + "".join(f" · {fact}" for fact in facts)


def _facts(report: RunReport, best: CandidateEntry, base: CandidateEntry | None) -> list[str]:
    row = timeline.headline_row(report, best)
    facts = [] if row is None else [f"**{timeline.speedup_of(row)}** at batch {row.batch} on {escape(row.target)}"]
    metric = written.metric_name(report.metric, short=True)
    for name, text, other in (
        (f" {metric}", written.percent(best.accuracy), base and written.percent(base.accuracy)),
        ("", written.size(best.size_bytes), base and written.size(base.size_bytes)),
    ):
        facts.append(f"{text}{name}" + (f" ({escape(base.name)}: {other})" if base and other != MISSING else ""))
    words = timeline.differences(report)
    return [*facts, escape(words)] if words else facts


def _candidates(report: RunReport) -> str:
    metric = written.metric_name(report.metric)
    head = ("Candidate", "Status", metric, "SQNR, dB", "Size", "Batch", "Median", "Speed-up [95 %]", "Reason")
    return _table(head, "llrrrrrrl", [_candidate(report, c) for c in timeline.ordered_candidates(report)])


def _candidate(report: RunReport, candidate: CandidateEntry) -> tuple[str, ...]:
    won, row = candidate.name == report.winner, timeline.deciding_row(report, candidate)
    return (
        f"**{escape(candidate.name)}**" if won else escape(candidate.name),
        "✓ winner" if won else f"{timeline.MARKS[candidate.status]} {candidate.standing}",
        written.percent(candidate.accuracy),
        written.fixed(candidate.sqnr_db, 1),
        written.size(candidate.size_bytes),
        *((str(row.batch), written.milliseconds(row.median_ms), timeline.speedup_of(row)) if row else [MISSING] * 3),
        escape(candidate.reason),
    )


def _latencies(measured: Sequence[tuple[str, BenchmarkRow]]) -> str:
    known = latency_table.measured_columns(row for _, row in measured)
    head = ("Candidate", "Target", "Batch", *(latency_table.HEADINGS[i] for i in known))
    figures = [(name, row, latency_table.cells(row)) for name, row in measured]
    rows = [(escape(name), escape(row.target), str(row.batch), *(own[i] for i in known)) for name, row, own in figures]
    return _table(head, "llr" + "r" * len(known), rows)


def _brought(section: Section) -> list[str]:
    tables = [
        _table(table.headings, table.align, [tuple(map(escape, row)) for row in table.rows])
        for table in section.tables
        if table.rows
    ]
    remarks = [f"{escape(subject)} {escape(remark)}" for subject, remark in section.remarks]
    return [f"## {escape(section.title)}", *tables, escape(section.note), *remarks]


def _sections(report: RunReport) -> list[str]:
    """Return the tables of the main line's stages that have some, the last stage first."""
    known = (entry.known.section() for entry in reversed(report.stages) if entry.known and entry.candidate is None)
    parts: list[str] = []
    for section in known:
        if section is not None and (section.rows or section.notes):
            rows = [tuple(escape(cell) or MISSING for cell in row) for row in section.rows]
            parts += [f"## {escape(section.title)}", _table(section.headings, "l" * len(section.headings), rows)]
            parts += map(escape, section.notes)
    return parts


def _obstacle(gate: timeline.CheckOutcome) -> str:
    """Return a check that ended the run in one point of a list: a table would cut the fix off."""
    _, name, candidate, value, limit, evidence, fix = _check(gate)
    of = "" if candidate == MISSING else f" of {candidate}"
    why = "" if evidence == MISSING else f"; {evidence}"
    return f"- **{name}**{of}: {value} must be {limit}{why}" + ("" if fix == MISSING else f".  \n  **Fix:** {fix}")


def _check(gate: timeline.CheckOutcome) -> tuple[str, ...]:
    check = gate.check
    value, limit = written.pair(check.value, check.limit)
    unit = f" {escape(check.unit)}" if check.unit else ""
    evidence = [check.detail] + ([f"Overridden: {check.override}"] if check.override is not None else [])
    return (
        f"{timeline.MARKS[gate.state]} {gate.state}",
        escape(check.name),
        MISSING if gate.candidate is None else escape(gate.candidate),
        "missing" if check.value is None else value + unit,
        f"{OPERATORS[check.op]} {limit}{unit}",
        escape("; ".join(filter(None, evidence))) or MISSING,
        escape(check.remedy) or MISSING,
    )


def _about(report: RunReport) -> str:
    links = [
        f"[{escape(name.translate(ROUND)) or 'link'}]({quote(url, safe=':/?#&=%@+,;', errors='replace')})"
        for name, url in report.links.items()
        if is_web(url)
    ]
    about = [f"Run {escape(report.run_id)}", escape(written.format_time(report.started_at))]
    return " · ".join([*about, f"took {written.duration(report.seconds)}", *links])


def _table(head: tuple[str, ...], align: str, rows: Sequence[tuple[str, ...]]) -> str:
    rule = tuple("---:" if side == "r" else "---" for side in align)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows[:MAX_ROWS])]
    more = f"\n\n{len(rows) - MAX_ROWS} more rows are in the HTML report." if len(rows) > MAX_ROWS else ""
    return "\n".join(lines) + more
