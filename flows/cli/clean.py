"""`gauntlet clean`: free the space of old runs, and of what no kept run refers to."""

import argparse
from typing import Any

from flows.cli.shared import counted
from flows.record.cleanup import plan_cleanup
from flows.record.home import Home
from flows.record.locks import locked
from flows.tracking.old_records import remove_records
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import size

KINDS = ("run", "result", "artifact", "leftover")


def clean_home(options: argparse.Namespace) -> int:
    """Remove what can be removed, or say what would be.

    Raises:
        ConfigError: when a run is in progress, or the home cannot be written.
    """
    home = Home.find()
    home.create()

    def refuse() -> None:
        raise ConfigError(f"{home.root}: a run is in progress; clean when it has ended")

    with locked(home.in_use, on_wait=refuse):
        cleanup = plan_cleanup(home, options.keep_runs, options.older_than)
        text = summary(options, cleanup)
        in_mlflow = remove_records(home, [run.name for run in cleanup.runs], dry_run=options.dry_run)
        if not options.dry_run:  # last: what is killed is found again by the folders of the runs
            cleanup.remove()
    text += f", and {size(in_mlflow)} in MLflow" if in_mlflow else ""
    print(text)  # noqa: T201
    if cleanup.unsent:
        names = ", ".join(run.name for run in cleanup.unsent)
        print(f"kept, because MLflow has not received them (gauntlet sync): {names}")  # noqa: T201
    return 0


def summary(options: argparse.Namespace, cleanup: Any) -> str:
    """Return how many of the `KINDS` a clean-up has removed, or would, and the space that it frees."""
    parts = ", ".join(counted(len(getattr(cleanup, f"{kind}s")), kind) for kind in KINDS)
    return f"{'would remove' if options.dry_run else 'removed'} {parts}: {size(cleanup.size_bytes) or '0 B'}"
