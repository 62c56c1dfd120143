"""`gauntlet promote`, `approve`, `rollback`, `abandon`, `canary` and `upgrade`: which version is the champion."""

import argparse
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from flows.cli.shared import Output, given_limits, plain
from flows.record.home import Home
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import counted, metric_name, milliseconds, percent
from wings.lifecycle.commands.monitor_command import patiently
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.promotion.ledger import checked_name
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits
from wings.lifecycle.registry.approval import decide
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.canary import CanaryLook, advance, end
from wings.lifecycle.registry.promote import Promotion, PromotionRequest, promote, rollback
from wings.lifecycle.registry.runtime_upgrade import UpgradeLimits, upgrade
from wings.lifecycle.registry.transaction import abandon


def promote_bundle(options: argparse.Namespace) -> int:
    """Promote a run's bundle and say what it replaced; a refusal is `GateFailed`."""
    limits = given_limits(ReplayLimits, options)
    requests, won = (Path(text) if text else None for text in (options.requests, options.must_win_on))
    parts = (options.source, options.role, options.name, options.why, requests, limits, won)
    request = PromotionRequest(*parts, approve=options.approve)
    console = Output()
    with console.status("promoting ...") as status:
        status.start() if console.is_terminal else status.stop()
        done = promote(
            Home.find(), request, on_round=lambda n: status.update(f"shadow replay: round {n} of {limits.rounds}")
        )
    _print(console, done, options.role)
    return 0


def answer(options: argparse.Namespace) -> int:
    """Approve or refuse the promotion that waits."""
    done = decide(Home.find(), options.name, not options.refuse, options.why)
    if options.refuse:
        Output().print(f"{done.name}: refused; nothing is changed", highlight=False, soft_wrap=True)
    else:
        _print(Output(), done, str(done.entry.role))
    return 0


def roll_back(options: argparse.Namespace) -> int:
    """Let the previous champion be the champion again."""
    done = rollback(Home.find(), options.name, options.why, options.leaves)
    _print(Output(), done, "champion")
    return 0


def abandon_change(options: argparse.Namespace) -> int:
    """Undo a change that a kill interrupted, which the next command would finish."""
    home = Home.find()
    intent = abandon(home, registry_of(home, checked_name(options.name)), options.why)
    line = f"{options.name}: the {intent.op} of line {intent.number} is undone; the aliases are as before"
    Output().print(line, highlight=False, soft_wrap=True)
    return 0


def _print(console: Console, done: Promotion, role: str) -> None:
    if done.waits:
        line = f"{done.name}: {str(done.entry.digest)[:12]} passed every check and waits for another person:"
        console.print(f"{line} gauntlet approve {done.name} --why TEXT", highlight=False, soft_wrap=True)
        return
    before = done.entry.replaced
    verb = "is now" if done.changed else "was already"
    replaced = f"; it replaced {before[:12]}" if done.changed and before else ""
    line = f"{done.name}: version {done.version} ({str(done.entry.digest)[:12]}) {verb} the {role}{replaced}"
    console.print(line, highlight=False, soft_wrap=True)
    if done.changed and done.entry.replay:
        console.print(replay_text(done.entry.replay), highlight=False, soft_wrap=True)
    for check in done.entry.checks:
        if done.changed and not check.passed:
            how = f"overridden: {check.override}" if check.override else "accepted"
            console.print(f"{plain(str(check))} ({plain(how)})", style="yellow", highlight=False, soft_wrap=True)
    console.print(f"The ledger: gauntlet history {done.name}", style="dim", highlight=False)


def replay_text(replay: ReplayFacts) -> str:
    """Return in lines what a shadow replay measured."""
    change = replay.change
    what = f"{metric_name(replay.change.metric, short=True)} drop" if replay.labeled else "disagreement"
    times = f"{milliseconds(replay.challenger_ms)} against {milliseconds(replay.champion_ms)}"
    gain, gained = replay.gain, ""
    if gain is not None:
        values = f"{percent(gain.after)} against {percent(gain.before)}"
        gained = f"won on {gain.n} requests: {metric_name(gain.metric, short=True)} {values}\n"
    return (
        f"{gained}replayed {replay.requests} requests: {what} {percent(change.drop)} "
        f"[{percent(change.low)}, {percent(change.high)}]; {times}, slowdown {percent(replay.slowdown)} "
        f"[{percent(replay.slowdown_low)}, {percent(replay.slowdown_high)}] in {replay.timed_requests} timed requests"
    )


def try_runtime(options: argparse.Namespace) -> int:
    """Compare, and print the verdict; a refusal is `GateFailed`."""
    limits = given_limits(UpgradeLimits, options)
    requests = Path(options.requests) if options.requests else None
    console = Output()
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


def run_canary(options: argparse.Namespace) -> int:
    """Start, look at, or stop a canary; return 1 when harm has stopped it."""
    limits, replay = given_limits(MonitorLimits, options), given_limits(ReplayLimits, options)
    if options.stop:
        _print_look(end(Home.find(), options.name, options.why or "stopped"))
        return 0
    if not options.log:
        raise ConfigError("--log: name the folder of the request log: gauntlet serve ... --request-log FOLDER")
    arguments = (Home.find(), options.name, Path(options.log), limits, replay)
    next_look = partial(advance, *arguments, per_step=options.per_step, why=options.why)
    while True:
        look = patiently(next_look, options.every)
        next_look = partial(next_look, may_start=False)  # what another command ends meanwhile stays ended
        _print_look(look)
        if options.every is None or look.has_ended:
            return 1 if look.has_ended and look.promotion is None else 0
        time.sleep(options.every)


def _print_look(look: CanaryLook) -> None:
    if look.promotion:
        line = f"version {look.promotion.version} is now the champion"
    elif look.entry.share:
        answered = f"{counted(look.answered, 'request')} at this step, no harm is proven"
        line = f"the challenger answers {look.entry.share:.0%} of the requests; {answered}"
        if look.waiting:
            line += f"; {counted(look.waiting, 'label')} not judged yet (--label-window-h)"
    else:
        line = f"the canary has ended, the champion answers everything: {plain(look.entry.why)}"
    Output().print(f"{look.name}: {line}", highlight=False, soft_wrap=True)
