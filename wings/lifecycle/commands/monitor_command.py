"""`gauntlet monitor`: whether a shipped model's inputs, outputs or errors have changed; its harm is rolled back."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from flows.cli.shared import given_limits, plain
from flows.record.home import Home
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.reporting.text_format import counted
from wings.lifecycle.library.monitoring.features import PREDICTED
from wings.lifecycle.library.monitoring.monitor import PAGE, monitor
from wings.lifecycle.library.monitoring.monitor_result import FULL, MonitorLimits, MonitorResult, RiskResult
from wings.lifecycle.registered_model import named_bundle

if TYPE_CHECKING:
    from wings.lifecycle.registry.watch import Watched  # loads MLflow, which a bundle does not need

Look = TypeVar("Look")
COLORS = {"no alarm": "green", "harmless": "green", "cannot tell": "yellow", "harmful": "red"}


def monitor_model(options: argparse.Namespace) -> int:
    """Print what the monitor found; return 1 for an alarm that is not proven harmless."""
    limits = given_limits(MonitorLimits, options)
    while True:
        result, watched = patiently(lambda: _look(options, limits), options.every)
        options.restart = False
        if options.every is None or (watched and watched.rollback):
            return 1 if result.is_alarm else 0
        time.sleep(options.every)


def patiently(look: Callable[[], Look], every: float | None) -> Look:
    """Return the result of a look; what breaks, as on a full disk, is repeated after `every` seconds."""
    while True:
        try:
            return look()
        except (StageError, OSError) as error:
            if every is None:
                raise
            print(f"gauntlet: {error}. Looking again in {every:g} s", file=sys.stderr)  # noqa: T201
            time.sleep(every)


def _look(options: argparse.Namespace, limits: MonitorLimits) -> "tuple[MonitorResult, Watched | None]":
    """Look once, print what was found, and return it."""
    home, out, log = Home.find(), Path(options.out) if options.out else None, Path(options.log)
    watched = None
    if options.roll_back:
        if Path(options.source).exists():
            raise ConfigError(
                f"--roll-back {options.source}: a bundle has no champion before it. Fix: name a registered model"
            )
        from wings.lifecycle.registry.watch import watch

        watched = watch(home, options.source, log, limits, out=out, restart=options.restart)
        result, folder = watched.result, watched.folder
    else:
        bundle = named_bundle(home, options.source)
        result, folder = monitor(bundle, log, limits, out=out, restart=options.restart)
    if options.json:
        print(result.model_dump_json(indent=2))  # noqa: T201
        return result, watched
    console = Console(soft_wrap=True, highlight=False)
    print_result(console, result, folder / PAGE)
    if watched:
        _print_watched(console, watched)
    return result, watched


def print_result(console: Console, result: MonitorResult, page: Path) -> None:
    """Print the verdict, the features that changed, and where the page is."""
    color = COLORS[result.verdict]
    name = f"{result.name} {result.version}"
    console.print(f"[bold {color}]{result.verdict.capitalize()}[/]: {plain(name)}: {plain(result.reason)}")
    labeled = counted(result.risk.labeled, "label") if result.risk else "no labels"
    console.print(f"{counted(result.samples, 'sample')}, {labeled}; {page}", style="dim")
    for feature in result.features:
        if feature.alarm_at is not None and feature.recent is not None:
            medians = f"median {feature.reference[1]:.4g} in the evaluation, {feature.recent[1]:.4g} since sample "
            medians += f"{feature.changed_at}"
            what = f"changed at about sample {feature.changed_at}" if feature.name == PREDICTED else medians
            console.print(f"{feature.name}: {what}; alarm at sample {feature.alarm_at}")
    if risk := result.risk:
        _print_labels(console, risk, result.limits.label_window_h)
    if partly := [
        f"{feature.name} ({feature.samples})" for feature in result.features if feature.samples < result.samples
    ]:
        console.print(f"not in the log of all samples: {', '.join(partly)}", style="dim")
    if result.no_embedding:
        reason = plain(result.no_embedding)
        console.print(f"the network's penultimate outputs are not watched: {reason}", style="dim")
    if result.is_full:
        console.print(FULL, style="yellow")


def _print_labels(console: Console, risk: RiskResult, window_h: float) -> None:
    """Print how many samples have no label, and which labels are not judged."""
    if risk.waiting:
        wait = f"earlier requests without one may get theirs for {window_h:g} h (--label-window-h)"
        console.print(f"{counted(risk.waiting, 'label')} not judged yet: {wait}", style="yellow")
    if risk.late:
        console.print(f"{counted(risk.late, 'label')} not judged: later than {window_h:g} h", style="yellow")
    if risk.labeled and risk.unlabeled:
        console.print(f"{counted(risk.unlabeled, 'sample')} without a label", style="dim")


def _print_watched(console: Console, watched: "Watched") -> None:
    """Print the comparison with the champion before, and what was done."""
    previous = watched.result.previous
    if previous is not None:
        counted_wrong = f"{previous.wrong} wrong, {previous.previous_wrong} of the champion before"
        text = plain(previous.note) or f"{counted(previous.compared, 'labeled sample')} compared: {counted_wrong}"
        left_out = f"; {previous.left_out} left out, whose inputs the log does not have" if previous.left_out else ""
        console.print(f"since the promotion: {text}{left_out}", style="dim")
    if done := watched.rollback:
        what = f"{plain(done.name)} is version {done.version} ({str(done.entry.digest)[:12]}) again"
        console.print(f"[bold red]Rolled back[/]: {what}; the ledger: gauntlet history {plain(done.name)}")
    elif watched.note:
        console.print(f"nothing is rolled back: {plain(watched.note)}", style="yellow")
