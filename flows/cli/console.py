"""What a person sees on the terminal: a line a verdict, a bar for long work, and the table at the end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flows.cli.report_tables import NAME_WIDTH, folded, latency_table, plain_table, print_sections
from flows.cli.shared import plain
from flows.record.home import Home
from gauntlet.core.report import Check
from gauntlet.core.run_report import CAUSE_SEPARATOR, BenchmarkRow, CandidateEntry, RunReport
from gauntlet.core.workspace import LOGS, handled, steps_log
from gauntlet.reporting import timeline
from gauntlet.reporting.latency_table import again
from gauntlet.reporting.text_format import metric_name, milliseconds, number, percent, printable, size

MIN_WIDTH = 12
"""Names are folded to no less than NAME_WIDTH while a column can be left out, and never to less than this."""
STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red"}


class Lines(logging.Handler):
    """Prints the project's log records, and shows a bar for each work in progress where there is a terminal."""

    def __init__(self, console: Console, bar: Progress) -> None:
        super().__init__(logging.INFO)
        self.console, self.bar = console, bar
        self.tasks: dict[str, TaskID] = {}  # by the key of the work
        self.labels: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, or move a bar."""
        work, total = getattr(record, "work", ""), getattr(record, "total", None)
        if total is not None:
            self._move(work, record.done, total, record.unit)  # type: ignore[attr-defined]
        elif hasattr(record, "began"):
            self._remove(work)
            self.labels[work] = record.began
            self.tasks[work] = self.bar.add_task(record.began, total=None, of="")
        elif hasattr(record, "ended"):
            self.labels.pop(work, None)
            self._remove(work)
        else:  # work whose end nobody tells: that of a command without stages
            for unlabeled in self.tasks.keys() - self.labels.keys():
                self._remove(unlabeled)
        if record.name != steps_log.name:
            message, step = record.getMessage(), total is not None
            text = Text(printable(message.strip()), style=STYLES.get(record.levelno, "dim" if step else ""))
            left = 2 if step or message.startswith(" ") else 0
            self.console.print(Padding(text, (0, 0, 0, left), expand=False), highlight=False)

    def _move(self, work: str, done: int, total: int, unit: str) -> None:
        label = f"{self.labels[work]}: {unit}" if work in self.labels else unit
        if work not in self.tasks or self.bar.tasks[self.bar.task_ids.index(self.tasks[work])].description != label:
            self._remove(work)
            self.tasks[work] = self.bar.add_task(label, total=total, of="")
        self.bar.update(self.tasks[work], completed=done, total=total, of=f"{done}/{total}")

    def _remove(self, work: str) -> None:
        if work in self.tasks:
            self.bar.remove_task(self.tasks.pop(work))


@contextmanager
def live(console: Console) -> Iterator[None]:
    """Show what happens inside."""
    columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.fields[of]}"), TimeRemainingColumn())
    steps_log.propagate = False
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown as bar, handled(Lines(console, bar), *LOGS):
        yield


def print_report(console: Console, report: RunReport, home: Home) -> None:
    """Print the candidates, why some were rejected, failed checks, the verdict, and where the files are."""
    if report.candidates:
        console.print(candidates_table(report, console.width))
    else:
        console.print(_title(report), highlight=False)
    if rows := _latencies(report):
        console.print(latency_table(rows, ("candidate",), console.width))
    print_sections(console, report)
    for title, status in (("Not raced:", "unchanged"), ("Not tried:", "not tried"), ("Rejected:", "rejected")):
        if grouped := reasons(report, status):
            console.print(title)
        for reason, names in grouped.items():
            line = Text(", ".join(names), style="bold").append(f": {printable(reason)}", style="not bold dim")
            console.print(Padding(line, (0, 0, 0, 2), expand=False), highlight=False)
    for check in unmet(report):
        note = f" (overridden: {check.override})" if check.override else ""
        check = check if check.detail != report.reason else check.replace(detail="")  # which the winner's line tells
        style = "bold red" if check.blocks else "yellow"
        console.print(Text(printable(f"{check.severity}: {check}{note}"), style=style), highlight=False)
    place = report.stopped_at or "the start"
    if report.verdict == "passed":
        console.print(f"[bold green]Winner: {plain(report.winner or '')}[/], {plain(report.reason)}", highlight=False)
        if words := timeline.differences(report):
            console.print(f"Beside the original: {plain(words)}", highlight=False)
    elif report.verdict == "cancelled":
        console.print(f"[bold yellow]Cancelled at {plain(place)}[/]; the same command continues it", highlight=False)
    else:
        reason = plain(report.reason.removeprefix(f"{place}: "))
        console.print(f"[bold red]Failed at {plain(place)}:[/] {reason}", highlight=False)
    store, page = home.store.root, home.runs / report.run_id / "report.html"
    model, bundle = timeline.model_file(report, store), timeline.bundle_file(report, store)
    for title, path in (("Model", model), ("Bundle", bundle), ("Report", page)):
        if path is not None:
            relative = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            console.print(f"{title}: {relative}", markup=False, highlight=False, soft_wrap=True)
    if bundle is not None:
        uses = timeline.bundle_uses(report)
        console.print(f"Use it: {', '.join(uses)}", markup=False, highlight=False, soft_wrap=True)


def _title(report: RunReport) -> str:
    return plain(f"{report.name}, run {report.run_id}")


def _latencies(report: RunReport) -> list[tuple[tuple[str], BenchmarkRow]]:
    """Return the rows that speed-ups are over, the winner's on its target, and those of its race alone."""
    base, best, bases = timeline.reference(report), timeline.winner(report), timeline.reference_rows(report)
    rows = [(base.name, row) for _, row in sorted(bases.items())] if base else []
    if best is not None:
        own = [row for _, row in sorted(timeline.own_rows(best).items()) if row not in bases.values()]
        rows += [(best.name if best is not base else f"{best.name} on {row.target}", row) for row in own] + again(best)
    return [((name,), row) for name, row in rows]


def candidates_table(report: RunReport, width: int) -> Table:
    """Return the table of candidates with as many columns as the width has room for.

    Where it is narrow, long names are folded. Milliseconds are left out first, then all batch sizes but the first, then
    SQNR where the accuracy is known. The verdict always stays.
    """
    batches, names = timeline.batch_sizes(report), [len(candidate.name) for candidate in report.candidates]
    scored = any(candidate.accuracy is not None for candidate in report.candidates)
    layouts = [(batches, True, True), (batches, False, True), (batches[:1], False, True)]
    layouts += [(batches[:1], False, not scored)]
    for sizes, times, sqnr in layouts:
        table = _table(report, sizes, times=times, sqnr=sqnr)
        full = Console(width=10 * width).measure(table).maximum
        room = max(names) - max(0, full - width)
        if room >= min(max(names), NAME_WIDTH):
            break
    return _table(report, sizes, times=times, sqnr=sqnr, name_width=max(room, MIN_WIDTH))


def _table(report: RunReport, batches: list[int], *, times: bool, sqnr: bool, name_width: int = 1000) -> Table:
    table = plain_table(_title(report))
    for title in ("candidate", "verdict"):
        table.add_column(title, no_wrap=True)
    scored = any(candidate.accuracy is not None for candidate in report.candidates)
    quality = [metric_name(report.metric, short=True)] * scored + ["size"] + ["SQNR dB"] * sqnr
    speeds = [f"{what}, batch {batch}" for batch in batches for what in ["ms"] * times + ["speed-up"]]
    for title in quality + speeds:
        table.add_column(title, justify="right", no_wrap=True)
    several = len({candidate.target for candidate in report.candidates if candidate.target}) > 1
    for candidate in report.candidates:
        style = "bold green" if candidate.name == report.winner else "" if candidate.status == "accepted" else "dim"
        accuracy = [percent(candidate.accuracy)] * scored
        numbers = (*accuracy, size(candidate.size_bytes), number(candidate.sqnr_db, 3))
        words = (folded(candidate.name, name_width), _verdict(candidate, report.winner, several=several))
        cells = map(plain, (*words, *numbers[: len(quality)], *_speeds(candidate, batches, times=times)))
        table.add_row(*cells, style=style)
    return table


def reasons(report: RunReport, status: str = "rejected") -> dict[str, list[str]]:
    """Return why candidates have a status, and which ones each reason holds for."""
    groups: dict[str, list[str]] = {}
    for candidate in report.candidates:
        if candidate.status == status:
            groups.setdefault(_reason(candidate), []).append(candidate.name)
    return groups


def unmet(report: RunReport) -> list[Check]:
    """Return the checks of the main line that did not pass, but for those that the run's reason tells anyway."""
    checks = [check for entry in report.stages if entry.candidate is None for check in entry.checks]
    return [check for check in checks if not check.passed and not (check.blocks and str(check) in report.reason)]


def _speeds(candidate: CandidateEntry, batches: list[int], *, times: bool) -> list[str]:
    cells = []
    rows = timeline.own_rows(candidate)
    for batch in batches:
        time = gain = ""
        if (row := rows.get(batch)) is not None:
            time = milliseconds(row.median_ms).removesuffix(" ms")
            reference = row.verdict == "reference"
            gain = "1" if reference else timeline.speedup_of(row)
        cells += [time, gain] if times else [gain]
    return cells


def _verdict(candidate: CandidateEntry, winner: str | None, *, several: bool) -> str:
    status = "winner" if candidate.name == winner else candidate.standing
    raced = candidate.target and status not in ("rejected", "unchanged", "not tried")
    return f"{status}\non {candidate.target}" if several and raced else status


def _reason(candidate: CandidateEntry) -> str:
    # The numbers of a measured candidate stand in the table already.
    reason, _, cause = candidate.reason.partition("\n")[0].partition(CAUSE_SEPARATOR)
    reason = reason.partition(": ")[0] if candidate.benchmark else reason
    return f"{reason}, because {cause}" if cause else reason
