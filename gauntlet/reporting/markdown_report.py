"""Render a run as Markdown of about one screen, for the Prefect page and the MLflow note."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from gauntlet.core.run_report import RunReport
from gauntlet.reporting import latency_table, timeline
from gauntlet.reporting import text_format as written
from gauntlet.reporting.section import sections
from gauntlet.reporting.text_format import MISSING, is_web

MAX_ROWS, MAX_OBSTACLES = 30, 6
OPERATORS = written.OPERATORS | {"<": "&lt;", ">": "&gt;"}
BLANK_LINES = re.compile(r"\n{3,}")
ROUND = str.maketrans("[]", "()")
SPECIAL = re.compile(r"[\\`*|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])|^#|^[+-](?![\d.])|^=(?==*$)|(?<=^\d)[.)](?=\s|$)")
"""Characters that are markup where they stand. Brackets and underscores that are not stay as they are."""


def render_markdown(report: RunReport, store: Path | None = None) -> str:
    """Return the run as Markdown; with the artifact store's folder, file paths are absolute."""
    reason, obstacles = timeline.own_reason(report), timeline.blocking_checks(report)[:MAX_OBSTACLES]
    failed = [gate for gate in timeline.gates(report) if gate.state != "passed" and gate not in obstacles]
    known = [entry.known for entry in reversed(report.stages) if entry.known and entry.candidate is None]
    measured = latency_table.lines(report)
    columns = latency_table.measured_columns(row for _, row in measured)
    figures = [(name, row, latency_table.cells(row)) for name, row in measured]
    text = _template().render(
        report=report,
        facts=_facts(report),
        reason="  \n".join(escape(line) for line in reason.splitlines() if line.strip()),
        obstacles=[_check(gate) for gate in obstacles],
        model=timeline.model_file(report, store or Path()),
        bundle=timeline.bundle_file(report, store or Path()),
        latency_headings=[latency_table.HEADINGS[i] for i in columns],
        latencies=[(escape(n), escape(r.target), str(r.batch), *(own[i] for i in columns)) for n, r, own in figures],
        brought=sections(report).values(),
        stage_sections=[section for facts in known if (section := facts.section()) is not None],
        not_passed=[_check(gate) for gate in failed],
        links=[_link(name, url) for name, url in report.links.items() if is_web(url)],
    )
    return BLANK_LINES.sub("\n\n", text).strip() + "\n"


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, autoescape=False, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["e"] = escape
    environment.globals.update(format=written, story=timeline, latency=latency_table, marks=timeline.MARKS)
    environment.globals.update(missing=MISSING, max_rows=MAX_ROWS)
    return environment.get_template("report.md.j2")


def escape(text: str) -> str:
    """Return text without meaning in Markdown or HTML, in one line."""
    line = " ".join(written.printable(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(lambda match: "\\" + match.group(0), line)


def _facts(report: RunReport) -> list[str]:
    """Return what is said of the winner beside its name."""
    best, reference = timeline.winner(report), timeline.reference(report)
    if best is None:
        return []
    base = None if reference is best else reference
    row = timeline.deciding_row(report, best.benchmark)
    facts = [] if row is None else [f"**{timeline.speedup_of(row)}** at batch {row.batch} on {escape(row.target)}"]
    metric = written.metric_name(report.metric, short=True)
    for name, text, other in (
        (f" {metric}", written.percent(best.accuracy), base and written.percent(base.accuracy)),
        ("", written.size(best.size_bytes), base and written.size(base.size_bytes)),
    ):
        facts.append(f"{text}{name}" + (f" ({escape(base.name)}: {other})" if base and other != MISSING else ""))
    words = timeline.differences(report)
    return [*facts, escape(words)] if words else facts


def _check(gate: timeline.CheckOutcome) -> tuple[str, ...]:
    check = gate.check
    value, limit = written.pair(check.value, check.limit)
    unit = check.unit_text.replace(check.unit, escape(check.unit))
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


def _link(name: str, url: str) -> str:
    address = quote(url, safe=":/?#&=%@+,;", errors="replace")
    return f"[{escape(name.translate(ROUND)) or 'link'}]({address})"
