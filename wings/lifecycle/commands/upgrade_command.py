"""`gauntlet upgrade`: try the champion in another release of ONNX Runtime."""

import argparse
from pathlib import Path

from rich.console import Console

from flows.cli.shared import given_limits, plain
from flows.record.home import Home
from gauntlet.runtime.signals import end_in_order
from wings.lifecycle.commands.promote_command import replay_text
from wings.lifecycle.registry.runtime_upgrade import UpgradeLimits, upgrade


def try_runtime(options: argparse.Namespace) -> int:
    """Compare, and print the verdict; a refusal is `GateFailed`."""
    limits = given_limits(UpgradeLimits, options)
    requests = Path(options.requests) if options.requests else None
    end_in_order()
    console = Console()
    with console.status("upgrading ...") as status:
        status.start() if console.is_terminal else status.stop()
        entry = upgrade(
            Home.find(),
            options.name,
            options.runtime,
            limits,
            requests=requests,
            why=options.why,
            say=lambda text: status.update(plain(text)),
            on_round=lambda done: status.update(f"race: round {done} of {limits.rounds}"),
        )
    console.print(f"{options.name}: may move from {entry.runtime}", highlight=False, soft_wrap=True)
    if entry.replay:
        console.print(replay_text(entry.replay), highlight=False, soft_wrap=True)
    for check in entry.checks:
        if check.name.startswith("upgrade."):
            style = None if check.passed else "yellow"
            console.print(plain(str(check)), style=style, highlight=False, soft_wrap=True)
    console.print(f"The ledger: gauntlet history {options.name}", style="dim", highlight=False)
    return 0
