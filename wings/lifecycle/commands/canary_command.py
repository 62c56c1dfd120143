"""`gauntlet canary`: let the challenger answer a growing share of the requests."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from flows.cli.shared import counted, given_limits, plain
from flows.record.home import Home
from gauntlet.core.errors import ConfigError
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.registry.canary import CanaryLook, advance, end


def run_canary(options: argparse.Namespace) -> int:
    """Start, look at, or stop a canary; return 1 when harm has stopped it."""
    limits, replay = given_limits(MonitorLimits, options), given_limits(ReplayLimits, options)
    if options.stop:
        _print(end(Home.find(), options.name, options.why or "stopped"))
        return 0
    if not options.log:
        raise ConfigError("--log: name the folder of the request log: gauntlet serve ... --request-log FOLDER")
    arguments = (Home.find(), options.name, Path(options.log), limits, replay)
    while True:
        look = advance(*arguments, per_step=options.per_step, why=options.why)
        _print(look)
        if options.every is None or look.has_ended:
            return 1 if look.has_ended and look.promotion is None else 0
        time.sleep(options.every)


def _print(look: CanaryLook) -> None:
    if look.promotion:
        line = f"version {look.promotion.version} is now the champion"
    elif look.entry.share:
        answered = f"{counted(look.answered, 'request')} at this step, no harm is proven"
        line = f"the challenger answers {look.entry.share:.0%} of the requests; {answered}"
    else:
        line = f"the canary has ended, the champion answers everything: {plain(look.entry.why)}"
    Console().print(f"{look.name}: {line}", highlight=False, soft_wrap=True)
