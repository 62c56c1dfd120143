"""Tables on a terminal: of latencies, and of the sections that wings and packages add to a report."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from flows.cli.shared import plain
from gauntlet.core.run_report import BenchmarkRow, RunReport
from gauntlet.reporting.latency_table import HEADINGS, cells
from gauntlet.reporting.section import SectionTable, sections

NARROW = 100
LEFT_OUT = ("Mean", "p90")
"""Columns that a narrow terminal has no room for."""


def plain_table() -> Table:
    """Return an empty table in the one style that commands print."""
    return Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def latency_table(rows: Iterable[tuple[Sequence[str], BenchmarkRow]], headings: Sequence[str], width: int) -> Table:
    """Return a table of rows, each with the words that name it under `headings`."""
    table = plain_table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    columns = [i for i, heading in enumerate(HEADINGS) if width >= NARROW or heading not in LEFT_OUT]
    for heading in ("batch", *(HEADINGS[i] for i in columns)):
        table.add_column(heading.lower(), justify="right", no_wrap=True)
    for words, row in rows:
        figures = cells(row)
        table.add_row(*map(plain, words), str(row.batch), *(figures[i] for i in columns))
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
