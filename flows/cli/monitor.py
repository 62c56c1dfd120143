"""`gauntlet monitor`: whether a shipped model's inputs, outputs or errors have changed."""

import argparse
from pathlib import Path

from rich.console import Console

from flows.cli.shared import counted, given_limits, plain
from flows.record.home import Home
from flows.registry.named_bundle import named_bundle
from gauntlet.monitoring.features import PREDICTED
from gauntlet.monitoring.monitor import PAGE, monitor
from gauntlet.monitoring.result import MonitorLimits, MonitorResult

COLORS = {"no alarm": "green", "harmless": "green", "cannot tell": "yellow", "harmful": "red"}


def monitor_model(options: argparse.Namespace) -> int:
    """Print what the monitor found; return 1 for an alarm that is not proven harmless."""
    limits = given_limits(MonitorLimits, options)
    bundle = named_bundle(Home.find(), options.source)
    out = Path(options.out) if options.out else None
    result, folder = monitor(bundle, Path(options.log), limits, out=out, restart=options.restart)
    if options.json:
        print(result.model_dump_json(indent=2))  # noqa: T201
    else:
        print_result(Console(soft_wrap=True, highlight=False), result, folder / PAGE)
    return 1 if result.is_alarm else 0


def print_result(console: Console, result: MonitorResult, page: Path) -> None:
    """Print the verdict, the features that changed, and where the page is."""
    color = COLORS[result.verdict]
    name = f"{result.name} {result.version}"
    console.print(f"[bold {color}]{result.verdict.capitalize()}[/]: {plain(name)}: {plain(result.reason)}")
    labeled = counted(result.risk.labeled, "label") if result.risk else "no labels"
    console.print(f"{counted(result.samples, 'sample')}, {labeled}; {page}", style="dim")
    for one in result.features:
        if one.alarm_at is not None and one.recent is not None:
            medians = (
                f"median {one.reference[1]:.4g} in the evaluation, {one.recent[1]:.4g} since sample {one.changed_at}"
            )
            what = f"changed at about sample {one.changed_at}" if one.name == PREDICTED else medians
            console.print(f"{one.name}: {what}; alarm at sample {one.alarm_at}")
    if result.is_full:
        console.print(
            "further samples are not tested. Fix: --restart, and `gauntlet serve --log-share`", style="yellow"
        )
