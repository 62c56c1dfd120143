"""`gauntlet compare`: two runs side by side."""

import argparse
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from flows.cli.report_tables import plain_table
from flows.cli.shared import Output, plain
from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import MISSING, fixed, metric_name, milliseconds, percent, size
from wings.comparison.library.run_comparison import Difference, RunComparison, RunSummary, compare_runs

SHOWN = 20
"""Most differences of one kind in the table; `--json` has all."""


def show_comparison(options: argparse.Namespace) -> int:
    """Print what two runs have in common and what differs."""
    home = Home.find()
    folders = (home.require_run(run) for run in (options.first, options.second))
    compared = compare_runs(*(RunReport.read(folder / "report.json") for folder in folders))
    if options.json:
        print(compared.model_dump_json(indent=1))  # noqa: T201
    else:
        _print(Output(), compared)
    return 0


def _print(console: Console, compared: RunComparison) -> None:
    table = _table("", "first", "second")
    for name, *values in _rows(compared.first, compared.second):
        table.add_row(name, *map(plain, values))
    console.print(table)
    hosts = [d.name for d in compared.environment if d.name in ("host", "processor", "usable_threads")]
    if hosts:
        text = f"Latencies are not comparable: {', '.join(hosts)} {'differs' if len(hosts) == 1 else 'differ'}."
        console.print(text, style="yellow", highlight=False)
    titles = {"gates": compared.gates, "settings": compared.settings, "environment": compared.environment}
    for title, differences in titles.items():
        _print_differences(console, title, differences)


def _print_differences(console: Console, title: str, differences: tuple[Difference, ...]) -> None:
    if not differences:
        console.print(f"\n{title}: the same", highlight=False)
        return
    table = _table(f"{title} that differ" if title != "environment" else title, "first", "second")
    for d in differences[:SHOWN]:
        table.add_row(plain(d.name), *(MISSING if v is None else plain(str(v)) for v in (d.first, d.second)))
    console.print(table)
    if len(differences) > SHOWN:
        console.print(f"and {len(differences) - SHOWN} more: gauntlet compare --json", style="dim", highlight=False)


def _table(*columns: str) -> Table:
    table = plain_table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rows(first: RunSummary, second: RunSummary) -> Iterator[tuple[str, str, str]]:
    columns = [dict(_cells(side)) for side in (first, second)]
    for name in dict.fromkeys((*columns[0], *columns[1])):
        yield name, columns[0].get(name, MISSING), columns[1].get(name, MISSING)


def _cells(side: RunSummary) -> Iterator[tuple[str, str]]:
    yield "run", side.run_id
    yield "model", side.name
    yield "verdict", f"{side.verdict} at {side.stopped_at}" if side.stopped_at else side.verdict
    yield "winner", side.winner or MISSING
    yield "target", side.target or MISSING
    yield metric_name(side.metric, short=True), percent(side.accuracy)
    yield "SQNR", MISSING if side.sqnr_db is None else f"{fixed(side.sqnr_db, 1)} dB"
    yield "size", size(side.size_bytes)
    for row in side.benchmark:
        yield f"latency, batch {row.batch}", milliseconds(row.median_ms)
        yield f"speed-up, batch {row.batch}", timeline.speedup_of(row)
