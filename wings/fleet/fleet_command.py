"""`gauntlet fleet`: every model of a folder runs the pipeline; one table and one page at the end."""

import argparse
import os
from functools import partial
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flows.cli.console import live
from flows.cli.report_tables import folded, plain_table
from flows.cli.shared import Output, plain
from flows.local_run import explain_full_disk, wait_for_prefect_events
from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from gauntlet.reporting.text_format import counted, percent, printable, ratio, size
from wings.fleet.fleet_record import FleetRecord
from wings.fleet.library.fleet_models import find_models
from wings.fleet.library.fleet_report import FleetReport, FleetResult

MODEL_WIDTH, WINNER_WIDTH = 24, 20
MAX_REASON = 300


def run_fleet(options: argparse.Namespace) -> int:
    """Run every model of a folder; 0 when all passed, 1 when one did not. `ConfigError` when there is none."""
    console, home, folder, settings = Output(), Home.find(), Path(options.folder), tuple(options.set)
    find_models(folder)  # nothing is started for an empty folder
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # Prefect reads it when imported
    code = 0
    prepare = partial(import_module, "wings.fleet.fleet_flow")
    with explain_full_disk(home), prefect_server(home, while_starting=prepare) as api, live(console):
        from wings.fleet.fleet_flow import NotAllPassed, fleet

        try:
            fleet_id = fleet(folder, settings, workers=options.workers, fresh=options.fresh)
        except NotAllPassed as error:
            code, fleet_id = error.exit_code, error.fleet_id
        finally:
            wait_for_prefect_events(api, None)
    record = FleetRecord(home.root / "fleets" / fleet_id)
    print_fleet(console, record.report(), record.folder / "fleet.html")
    return code


def print_fleet(console: Console, report: FleetReport, page: Path) -> None:
    """Print a row a model, why some did not pass, and where the page is."""
    console.print(fleet_table(report))
    if report.others:
        console.print("Not passed:")
    for result in report.others:
        reason = printable(result.reason.strip().partition("\n")[0])[:MAX_REASON]
        line = Text(printable(result.model), style="bold").append(f": {reason}", style="not bold dim")
        console.print(Padding(line, (0, 0, 0, 2), expand=False), highlight=False)
    passed = f"{len(report.passed)} of {counted(len(report.results), 'model')} passed"
    console.print(Text(passed, style="bold red" if report.others else "bold green"), highlight=False)
    relative = page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page
    console.print(f"Page: {relative}", markup=False, highlight=False, soft_wrap=True)


def fleet_table(report: FleetReport) -> Table:
    """Return the table, which fits 80 columns."""
    table = plain_table()
    for title in ("model", "verdict", "winner"):
        table.add_column(title, overflow="fold")
    for title in ("speed-up", "quality", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in report.results:
        style = "" if result.verdict == "passed" else "red"
        table.add_row(*map(plain, _cells(result)), style=style)
    return table


def _cells(result: FleetResult) -> tuple[str, ...]:
    return (
        folded(result.model, MODEL_WIDTH),
        result.outcome,
        folded(result.winner or "", WINNER_WIDTH),
        ratio(result.speedup) if result.speedup is not None else "",
        percent(result.quality) if result.quality is not None else "",
        size(result.size_bytes) if result.size_bytes is not None else "",
    )
