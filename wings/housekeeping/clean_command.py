"""`gauntlet clean`: free the space of old runs, and of what no kept run refers to."""

import argparse

from flows.cli.shared import cleanup_summary
from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import size
from wings.housekeeping.cleanup import plan_cleanup
from wings.housekeeping.old_records import remove_records


def clean_home(options: argparse.Namespace) -> int:
    """Remove what can be removed, or say what would be.

    Raises:
        ConfigError: when a run or a promotion is in progress, or the home cannot be written.
    """
    home = Home.find()
    home.create()

    def refuse() -> None:
        raise ConfigError(f"{home.root}: a run is in progress, or a promotion; clean when it has ended")

    with locked(home.in_use, on_wait=refuse):
        cleanup = plan_cleanup(home, options.keep_runs, options.older_than)
        text = cleanup_summary(options, cleanup)
        in_mlflow = remove_records(home, [run.name for run in cleanup.runs], dry_run=options.dry_run)
        if not options.dry_run:  # last: what is killed is found again by the folders of the runs
            cleanup.remove()
    text += f", and {size(in_mlflow)} in MLflow" if in_mlflow else ""
    print(text)  # noqa: T201
    if cleanup.unsent:
        names = ", ".join(run.name for run in cleanup.unsent)
        print(f"kept, because MLflow has not received them (gauntlet sync): {names}")  # noqa: T201
    return 0
