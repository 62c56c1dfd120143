"""`gauntlet clean`: free the disk space of old runs, and of what no kept run refers to."""

import argparse

from flows.cli.shared import counted
from flows.record.cleanup import plan_cleanup
from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import size


def clean_home(options: argparse.Namespace) -> int:
    """Remove what can be removed, or say what would be; raise `ConfigError` when a run is in progress in this home."""
    home = Home.find()

    def refuse() -> None:
        raise ConfigError(f"{home.root}: a run is in progress; clean when it has ended")

    with locked(home.in_use, on_wait=refuse):
        cleanup = plan_cleanup(home, options.keep_runs, options.older_than)
        kinds = ("run", "result", "artifact", "leftover")
        parts = ", ".join(counted(len(getattr(cleanup, f"{kind}s")), kind) for kind in kinds)
        freed = size(cleanup.size_bytes) or "0 B"
        if not options.dry_run:
            cleanup.remove()
    print(f"{'would remove' if options.dry_run else 'removed'} {parts}: {freed}")  # noqa: T201
    if cleanup.unsent:
        names = ", ".join(run.name for run in cleanup.unsent)
        print(f"kept, because MLflow has not received them (gauntlet sync): {names}")  # noqa: T201
    return 0
