"""`gauntlet runs`, `show` and `sync`: every run of the home, the report of one, and what MLflow missed."""

import argparse
import importlib
from pathlib import Path

from rich.table import Table

from flows.cli.report_tables import plain_table
from flows.cli.shared import Output, plain
from flows.record.home import Home
from flows.record.journal import everything_sent, interrupted_runs
from flows.record.locks import is_locked
from flows.servers.local_servers import prefect_server
from flows.tracking.sender import Sender
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.run_report import RunReport
from gauntlet.reporting import timeline

MAX_ID = 50
"""Characters of an id that leave room for the other columns of a narrow terminal."""


def close_interrupted_runs(home: Home) -> None:
    """Write the reports of killed runs, and tell Prefect and MLflow; takes seconds where there are any."""
    if interrupted_runs(home):
        with prefect_server(home):
            from flows.recording import close_interrupted  # Prefect reads the server's address when it is imported

            close_interrupted(home)


def list_runs(options: argparse.Namespace) -> int:
    """Print a line for each run, the newest `--last` ones only where it is given."""
    home, console = Home.find(), Output()
    close_interrupted_runs(home)
    folders = home.run_folders()[::-1][: options.last]
    console.print(runs_table(folders) if folders else "No runs. Start one with: gauntlet run MODEL --data DATA")
    return 0


def runs_table(folders: list[Path]) -> Table:
    """Return a table of runs: id, verdict, and the winner with its speed-up or the stage that stopped the run."""
    table = plain_table()
    table.show_edge, table.pad_edge = False, False  # so that 80 columns have room for a winner with its interval
    short = max(len(folder.name) for folder in folders) <= MAX_ID
    for heading, whole in (("run", short), ("verdict", True), ("outcome", False)):
        table.add_column(heading, overflow="fold", no_wrap=whole)  # an id is copied
    for folder in folders:
        table.add_row(*map(plain, (folder.name, *_outcome(folder / "report.json"))))
    return table


def _outcome(path: Path) -> tuple[str, str]:
    if not path.is_file():
        return ("running", "") if is_locked(path.with_name("lock")) else ("unknown", "it has no record")
    try:
        report = RunReport.read(path)
    except ConfigError:
        return "unknown", "its report is damaged, or old"
    if (best := timeline.winner(report)) is None:
        return report.verdict, f"stopped at {report.stopped_at or 'the start'}"
    row = timeline.deciding_row(report, best.benchmark)
    return report.verdict, best.name + (f" {timeline.speedup_of(row)}" if row else "")


def show_run(options: argparse.Namespace) -> int:
    """Print a run's report, also a killed one's; raise `ConfigError` when there is no such run."""
    from flows.cli.console import print_report  # what reads the facts of stages imports each; `runs` does not
    from flows.record.report_files import read_report

    home = Home.find()
    close_interrupted_runs(home)
    folder = home.require_run(options.run)
    report = read_report(folder / "report.json")
    if options.json:
        print((folder / "report.json").read_text(encoding="utf-8"))  # noqa: T201
    else:
        print_report(Output(), report, home)
    return 0


def sync_runs(_options: argparse.Namespace) -> int:
    """Send what is missing of every run; raise `StageError` when a server cannot be reached or refuses the record."""
    home = Home.find()
    importlib.import_module("mlflow")  # without it, nothing would wait to be sent
    close_interrupted_runs(home)
    waiting = [folder for folder in home.run_folders() if not everything_sent(folder)]
    unsent = [folder.name for folder in waiting if not Sender(home, folder).send()]
    print(f"{len(waiting) - len(unsent)} of {len(waiting)} runs sent")  # noqa: T201
    if unsent:
        raise StageError(f"not sent: {', '.join(unsent)}; the server cannot be reached, or refuses the record")
    return 0
