"""`gauntlet retrain`: a shipped model learns from its labeled requests, and is promoted if it is proven better."""

import argparse
import importlib
import os
from pathlib import Path

from flows.cli.console import live
from flows.cli.shared import Output, given_limits, plain
from flows.local_run import explain_full_disk, wait_for_prefect_events
from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.promotion.ledger import checked_name
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.library.promotion.retrain_facts import RetrainLimits


def retrain_model(options: argparse.Namespace) -> int:
    """Retrain, and print what came of it; `GateFailed` when the champion is kept."""
    limits, replay = given_limits(RetrainLimits, options), given_limits(ReplayLimits, options)
    checked_name(options.name)
    RequestLogReader(Path(options.log)).require()  # nothing is started for a log that is not there
    console, home = Output(), Home.find()
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # Prefect reads it when imported
    with explain_full_disk(home), prefect_server(home, while_starting=_prepare) as api, live(console):
        from wings.lifecycle.prefect_flows.retraining import retrain

        try:
            summary = retrain(
                options.name, options.log, limits=limits, replay=replay, why=options.why, fresh=options.fresh
            )
        finally:
            wait_for_prefect_events(api, None)
    console.print(plain(summary), highlight=False, soft_wrap=True)
    return 0


def _prepare() -> None:
    importlib.import_module("wings.lifecycle.prefect_flows.retraining")
