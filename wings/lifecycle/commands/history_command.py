"""`gauntlet history`: what was promoted, refused and rolled back, and whether the record is intact."""

import argparse
import json

from rich.console import Console
from rich.table import Table

from flows.cli.shared import Output, plain
from flows.record.home import Home
from gauntlet.reporting.text_format import MISSING
from wings.lifecycle.library.promotion.ledger import CLOSING, Entry
from wings.lifecycle.registry.model_history import History, history


def show_history(options: argparse.Namespace) -> int:
    """Print a model's ledger; the exit code is 1 when its chain is broken, or the registry says something else."""
    past = history(Home.find(), options.name)
    if options.json:
        print(json.dumps(past.as_json(), indent=1))  # noqa: T201
    else:
        _print(Output(), past)
    return 1 if past.problem else 0


def _print(console: Console, past: History) -> None:
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("line", "when (UTC)", "what", "outcome", "version", "from"):
        table.add_column(column, no_wrap=True, justify="right" if column in ("line", "version", "from") else "left")
    table.add_column("by and why", overflow="fold")
    versions = past.versions()
    for entry in past.entries:
        if entry.op not in CLOSING:
            table.add_row(*_row(past, entry, versions))
    console.print(table)
    aliases = ", ".join(f"{alias}: version {versions.get(d, d[:12])}" for alias, d in sorted(past.aliases.items()))
    console.print(f"{past.name}: {aliases or 'no aliases known'}", highlight=False)
    if past.problem:
        console.print(plain(past.problem), style="red", highlight=False, soft_wrap=True)
    elif past.note:
        console.print(f"The chain is intact. Not compared: {plain(past.note)}", style="yellow", soft_wrap=True)
    else:
        console.print("The chain is intact, and the registry agrees.", style="green", highlight=False)


def _row(past: History, entry: Entry, versions: dict[str, str]) -> tuple[str, ...]:
    def version(digest: str | None) -> str:
        return versions.get(digest, digest[:7]) if digest else MISSING

    failed = [check.name for check in entry.checks if check.blocks]
    why = "; ".join(text for text in (entry.runtime, entry.cause, entry.why, ", ".join(failed)) if text)
    ops = {"rollback": "rollback", "upgrade": "upgrade", "canary": f"canary {entry.share or 0:.0%}"}
    what = ops.get(entry.op, entry.role or "champion")
    when = f"{entry.time[:10]} {entry.time[11:16]}"
    by = plain(f"{entry.by}: {why}" if why else entry.by)
    return str(entry.number), when, what, past.outcome(entry), version(entry.digest), version(entry.replaced), by
