"""`gauntlet clean`: free the space of old runs, and of what no kept run refers to."""

import argparse

from flows.cli.shared import counted
from flows.record.cleanup import Cleanup, plan_cleanup
from flows.record.home import Home
from flows.record.locks import locked
from flows.record.shared_cleanup import SharedCleanup, no_run_in_progress, plan_shared_cleanup
from gauntlet.core.errors import ConfigError
from gauntlet.core.object_store import ObjectStore
from gauntlet.core.object_store_client import VARIABLE
from gauntlet.reporting.text_format import size

KINDS = ("run", "result", "artifact", "leftover")


def clean_home(options: argparse.Namespace) -> int:
    """Remove what can be removed, or say what would be; raise `ConfigError` when a run is in progress."""
    home = Home.find()
    if options.shared:
        _clean_shared_store(options, home)
        return 0

    def refuse() -> None:
        raise ConfigError(f"{home.root}: a run is in progress; clean when it has ended")

    with locked(home.in_use, on_wait=refuse):
        cleanup = plan_cleanup(home, options.keep_runs, options.older_than)
        text = _summary(options, cleanup)
        if not options.dry_run:
            cleanup.remove()
    print(text)  # noqa: T201
    if cleanup.unsent:
        names = ", ".join(run.name for run in cleanup.unsent)
        print(f"kept, because MLflow has not received them (gauntlet sync): {names}")  # noqa: T201
    return 0


def _clean_shared_store(options: argparse.Namespace, home: Home) -> None:
    store = home.store
    if not isinstance(store, ObjectStore):
        raise ConfigError(f"--shared: there is no shared store. Fix: set {VARIABLE}, for example to s3://BUCKET/PREFIX")
    with no_run_in_progress(store):
        cleanup = plan_shared_cleanup(store, options.keep_runs, options.older_than)
        if not options.dry_run:
            cleanup.remove(store)
    print(f"{store.address}: {_summary(options, cleanup)}")  # noqa: T201


def _summary(options: argparse.Namespace, cleanup: Cleanup | SharedCleanup) -> str:
    parts = ", ".join(counted(len(getattr(cleanup, f"{kind}s")), kind) for kind in KINDS)
    return f"{'would remove' if options.dry_run else 'removed'} {parts}: {size(cleanup.size_bytes) or '0 B'}"
