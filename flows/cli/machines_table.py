"""The races on other machines, on a terminal."""

from rich import box
from rich.console import Console
from rich.table import Table

from flows.cli.shared import plain
from gauntlet.core.run_report import RunReport
from gauntlet.reporting.machines import HEADINGS, RACE_HEADINGS, machines

NARROW = 100
LEFT_OUT = ("Threads", "Other load", "Verdict")
"""Columns that a narrow terminal has no room for."""


def print_machines(console: Console, report: RunReport) -> None:
    """Print the machines of a run and the rows from other ones; nothing where all targets raced on its own.

    Why a target has no rows is told by the warnings of the run.
    """
    if (found := machines(report)) is None:
        return
    console.print(_table(RACE_HEADINGS, 3, [race.words for race in found.races], console.width))
    if found.lines:
        console.print(_table(HEADINGS, 3, [line.words for line in found.lines], console.width))


def _table(headings: tuple[str, ...], words: int, rows: list[tuple[str, ...]], width: int) -> Table:
    """Return a table whose first columns hold words, which are folded, and the others figures, which are not."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown = [i for i, heading in enumerate(headings) if width >= NARROW or heading not in LEFT_OUT]
    for i in shown:
        name = headings[i].lower().replace("a/a", "A/A")
        if i < words:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(plain(row[i]) for i in shown))
    return table
