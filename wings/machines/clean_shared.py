"""`gauntlet clean --shared`: free the space of what the runs of no machine need any more."""

import argparse

from flows.cli.shared import cleanup_summary
from flows.record.home import Home
from gauntlet.core.artifact import STORE_ADDRESS
from gauntlet.core.errors import ConfigError
from wings.machines.library.object_store import ObjectStore
from wings.machines.library.shared_cleanup import no_run_in_progress, plan_shared_cleanup


def clean_shared_store(options: argparse.Namespace) -> int:
    """Remove what can be removed, or say what would be.

    Raises:
        ConfigError: when there is no shared store, or a run of any machine is in progress.
    """
    store = Home.find().store
    if not isinstance(store, ObjectStore):
        fix = f"set {STORE_ADDRESS}, for example to s3://BUCKET/PREFIX"
        raise ConfigError(f"--shared: there is no shared store. Fix: {fix}")
    with no_run_in_progress(store):
        cleanup = plan_shared_cleanup(store, options.keep_runs, options.older_than)
        if not options.dry_run:
            cleanup.remove(store)
    print(f"{store.address}: {cleanup_summary(options, cleanup)}")  # noqa: T201
    return 0
