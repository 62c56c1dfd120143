"""What a person sees on the terminal: a line a verdict, a bar for long work, and the table at the end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tasks.render.format import milliseconds, number, percent, size, speedup
from tasks.run_report import BECAUSE, CandidateEntry, RunReport
from tasks.workspace import steps_log

WIDE = 130
STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red"}


class Lines(logging.Handler):
    """Prints the project's log records, and turns progress records into a bar where there is a terminal."""

    def __init__(self, console: Console, bar: Progress) -> None:
        super().__init__(logging.INFO)
        self.console, self.bar = console, bar
        self.task: TaskID | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, or move the bar."""
        total = getattr(record, "total", None)
        if total is not None:
            self._move(record.done, total, record.unit)  # type: ignore[attr-defined]
        elif self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None
        if record.name != steps_log.name:
            text = escape(record.getMessage())
            indent = "  " if total is not None else ""
            self.console.print(indent + text, style=STYLES.get(record.levelno, "dim" if total else ""), highlight=False)

    def _move(self, done: int, total: int, unit: str) -> None:
        if self.task is None or self.bar.tasks[-1].description != unit:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.task = self.bar.add_task(unit, total=total)
        self.bar.update(self.task, completed=done, total=total)


@contextmanager
def live(console: Console) -> Iterator[None]:
    """Show what happens inside."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    log = logging.getLogger("gauntlet")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        handler = Lines(console, bar)
        for logger in (log, steps_log):
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        steps_log.propagate = False
        try:
            yield
        finally:
            for logger in (log, steps_log):
                logger.removeHandler(handler)


def print_report(console: Console, report: RunReport) -> None:
    """Print the candidates, the verdict and the reason."""
    narrow = console.width < WIDE
    if report.candidates:
        console.print(candidates_table(report, narrow=narrow))
    for reason, names in reasons(report).items() if narrow else ():
        line = Text(f"{', '.join(names)} rejected: {reason}", style="dim")
        console.print(Padding(line, (0, 0, 0, 2)), highlight=False)
    for entry in report.stages:
        for check in entry.checks:
            if entry.candidate is None and not check.passed:
                style = "bold red" if check.blocks else "yellow"
                note = f" (overridden: {check.override})" if check.override else ""
                console.print(f"{check.severity}: {escape(str(check))}{escape(note)}", style=style, highlight=False)
    if report.verdict == "passed":
        console.print(f"[bold green]Winner: {escape(report.winner or '')}[/], {escape(report.reason)}", highlight=False)
    else:
        console.print(
            f"[bold red]Failed at {report.stopped_at or 'the start'}:[/] {escape(report.reason)}", highlight=False
        )


def candidates_table(report: RunReport, *, narrow: bool = False) -> Table:
    """Return the table of candidates: what each costs, what it gains, and what became of it.

    A narrow one has the first batch size only, no milliseconds, no reasons, and SQNR only where nobody knows the
    accuracy.
    """
    batches = sorted({row.batch for c in report.candidates for row in c.benchmark})
    if narrow:
        batches = batches[:1]
    table = Table(title=f"{report.name}, run {report.run_id}", title_justify="left", header_style="bold")
    table.add_column("candidate", no_wrap=True)
    scored = any(c.accuracy is not None for c in report.candidates)
    qualities = [
        t for t, shown in (("accuracy", scored), ("size", True), ("SQNR dB", not (narrow and scored))) if shown
    ]
    for title in qualities:
        table.add_column(title, justify="right", no_wrap=True)
    for batch in batches:
        if not narrow:
            table.add_column(f"ms, batch {batch}", justify="right", no_wrap=True)
        table.add_column("speed-up [95 %]", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", ratio=1)
    several = len({candidate.target for candidate in report.candidates if candidate.target}) > 1
    for candidate in report.candidates:
        style = "bold green" if candidate.name == report.winner else "dim" if candidate.status == "rejected" else ""
        quality = {"accuracy": percent(candidate.accuracy), "size": size(candidate.size_bytes)}
        quality["SQNR dB"] = number(candidate.sqnr_db, 3)
        cells = [candidate.name, *(quality[title] for title in qualities), *_speeds(candidate, batches, narrow=narrow)]
        verdict = _verdict(candidate, report.winner, bare=narrow, several=several)
        table.add_row(*map(escape, cells), escape(verdict), style=style)
    return table


def reasons(report: RunReport) -> dict[str, list[str]]:
    """Return why candidates were rejected, and which ones each reason holds for."""
    found: dict[str, list[str]] = {}
    for candidate in report.candidates:
        if candidate.status == "rejected":
            found.setdefault(_reason(candidate), []).append(candidate.name)
    return found


def _speeds(candidate: CandidateEntry, batches: list[int], *, narrow: bool) -> list[str]:
    cells = []
    rows = {row.batch: row for row in reversed(candidate.benchmark)}  # of several targets, the first decides
    for batch in batches:
        row = rows.get(batch)
        time = "" if row is None else milliseconds(row.median_ms).removesuffix(" ms")
        if row is None:
            gain = ""
        elif row.verdict == "reference":
            gain = "1"
        else:
            gain = speedup(row.speedup, row.speedup_low, row.speedup_high)
        cells += [gain] if narrow else [time, gain]
    return cells


def _verdict(candidate: CandidateEntry, winner: str | None, *, bare: bool, several: bool) -> str:
    status = "winner" if candidate.name == winner else "reference" if candidate.parent is None else candidate.status
    place = f" on {candidate.target}" if several and candidate.status == "accepted" and candidate.target else ""
    return f"{status}: {_reason(candidate)}" if status == "rejected" and not bare else status + place


def _reason(candidate: CandidateEntry) -> str:
    # The numbers of a measured candidate stand in the table already.
    reason, _, cause = candidate.reason.partition("\n")[0].partition(BECAUSE)
    reason = reason.partition(": ")[0] if candidate.benchmark else reason
    return f"{reason}, because {cause}" if cause else reason
