"""Tables on a terminal: of latencies, and of the sections that wings and packages add to a report."""

import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from flows.cli.shared import plain
from gauntlet.core.run_report import BenchmarkRow, RunReport
from gauntlet.reporting.latency_table import HEADINGS, cells, measured_columns
from gauntlet.reporting.section import SectionTable, sections

NARROW = 100
NAME_WIDTH = 28
LEFT_OUT = ("Mean", "p90")
"""Columns that a narrow terminal has no room for."""


def plain_table(title: str | None = None) -> Table:
    """Return an empty table in the one style that commands print."""
    style = {"title_justify": "left", "header_style": "bold"}
    return Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), **style)  # type: ignore[arg-type]


def folded(name: str, width: int) -> str:
    """Return a name on as many lines as it takes, broken behind hyphens, underscores and slashes where it has them."""
    lines = [""]
    for part in re.findall(r"[^-_/]*[-_/]|[^-_/]+", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line[start : start + width] for line in lines for start in range(0, max(1, len(line)), width))


def latency_table(rows: Iterable[tuple[Sequence[str], BenchmarkRow]], headings: Sequence[str], width: int) -> Table:
    """Return a table of rows, each with the words that name it under `headings`.

    A column without any figure is left out.
    """
    table, rows = plain_table(), [*rows]
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    known = measured_columns(row for _, row in rows)
    columns = [i for i in known if width >= NARROW or HEADINGS[i] not in LEFT_OUT]
    for heading in ("batch", *(HEADINGS[i] for i in columns)):
        table.add_column(heading.lower(), justify="right", no_wrap=True)
    room = NAME_WIDTH if width >= NARROW else NAME_WIDTH // len(headings)
    for words, row in rows:
        names, figures = [plain(folded(word, room)) for word in words], cells(row)
        table.add_row(*names, str(row.batch), *(figures[i] for i in columns))
    return table


def print_sections(console: Console, report: RunReport) -> None:
    """Print the tables of all sections."""
    for section in sections(report).values():
        for table in section.tables:
            if table.rows:
                console.print(_table(table, console.width))


def _table(content: SectionTable, width: int) -> Table:
    table = plain_table()
    left_out = content.only_where_wide if width < NARROW else ()
    columns = [i for i, heading in enumerate(content.headings) if heading not in left_out]
    for i in columns:
        name = content.headings[i].lower().replace("a/a", "A/A")
        if content.align[i] == "l":
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in content.rows:
        table.add_row(*(plain(row[i]) for i in columns))
    return table
