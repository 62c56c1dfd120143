"""The table of latencies on a terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from flows.cli.shared import plain
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.reporting.latency_table import HEADINGS, cells

NARROW = 100
LEFT_OUT = ("Mean", "p90")
"""Columns that a narrow terminal has no room for."""


def latency_table(rows: Iterable[tuple[Sequence[str], BenchmarkRow]], headings: Sequence[str], width: int) -> Table:
    """Return a table of rows, each with the words that name it under `headings`."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    shown = [i for i, heading in enumerate(HEADINGS) if width >= NARROW or heading not in LEFT_OUT]
    for heading in ("batch", *(HEADINGS[i] for i in shown)):
        table.add_column(heading.lower(), justify="right", no_wrap=True)
    for words, row in rows:
        figures = cells(row)
        table.add_row(*map(plain, words), str(row.batch), *(figures[i] for i in shown))
    return table
