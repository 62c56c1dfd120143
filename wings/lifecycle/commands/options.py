"""The options of promotion, monitoring and retraining; what a command does is imported when it is called."""

import argparse

from flows.cli.argument_types import at_least, port
from flows.cli.commands import INVALID, WATCH, AddCommand, Commands, adder

USES = {
    "promote": (WATCH, "gauntlet promote winner.zip"),
    "approve": (WATCH, "gauntlet approve digits --why 'as tried'"),
    "canary": (WATCH, "gauntlet canary digits --log requests --every 60"),
    "rollback": (WATCH, "gauntlet rollback digits"),
    "abandon": (WATCH, "gauntlet abandon digits"),
    "upgrade": (WATCH, "gauntlet upgrade digits onnxruntime==1.32.0"),
    "history": (WATCH, "gauntlet history digits"),
    "monitor": (WATCH, "gauntlet monitor digits --log requests"),
    "retrain": (WATCH, "gauntlet retrain digits --log requests"),
}


def add_commands(commands: Commands) -> None:
    """Add the commands."""
    add = adder(commands, "wings.lifecycle.commands", USES)
    _add_promotion_commands(add)
    _add_monitor(add)
    _add_retrain(add)


def _add_promotion_commands(add: AddCommand) -> None:
    codes = f"exit codes: 0 done, 1 refused, {INVALID}, 3 the registry or a model cannot be used"
    promote = add(
        "promote",
        "promote_command:promote_bundle",
        "register a bundle, and make it the champion if it is no worse",
        codes,
    )
    promote.add_argument("source", metavar="RUN|BUNDLE", help="id of a run, a bundle, or models:/NAME@challenger")
    promote.add_argument("--as", dest="role", choices=["champion", "challenger"], default="champion", help="the alias")
    promote.add_argument("--name", help="of the registered model; by default, the run's")
    promote.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    replayed = "requests to replay; by default the run's test samples"
    promote.add_argument("--requests", metavar="FILE.npz|FOLDER", help=replayed)
    won = "labeled requests on which it must be proven better than the champion"
    promote.add_argument("--must-win-on", metavar="FILE.npz|FOLDER", help=won)
    waits = "let another person decide, once it may be promoted: gauntlet approve"
    promote.add_argument("--approve", action="store_true", help=waits)
    _add_replay_limits(promote)
    approve = add("approve", "promote_command:answer", "approve or refuse a promotion that waits for it", codes)
    approve.add_argument("name", metavar="NAME", help="of the registered model")
    approve.add_argument("--why", required=True, metavar="TEXT", help="the reason, for the ledger")
    approve.add_argument("--refuse", action="store_true", help="refuse it")
    _add_canary(add)
    _add_upgrade(add)
    rollback = add("rollback", "promote_command:roll_back", "make the previous champion the champion again", codes)
    rollback.add_argument("name", metavar="NAME", help="of the registered model")
    rollback.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    left = "the champion to leave; needed after a rollback"
    rollback.add_argument("--from", dest="leaves", metavar="VERSION", help=left)
    abandon = add("abandon", "promote_command:abandon_change", "undo a promotion that was interrupted", codes)
    abandon.add_argument("name", metavar="NAME", help="of the registered model")
    abandon.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    text = "show what was promoted, refused and rolled back, and whether the record is intact"
    intact = f"exit codes: 0 intact, 1 the chain is broken or the registry disagrees, {INVALID}"
    history = add("history", "history_command:show_history", text, intact)
    history.add_argument("name", metavar="NAME", help="of the registered model")
    history.add_argument("--json", action="store_true", help="print JSON")


def _add_canary(add: AddCommand) -> None:
    codes = f"exit codes: 0 it goes on, was stopped by --stop, or is the champion, 1 harm or a refusal, {INVALID}"
    text = "let the challenger answer a growing share of the requests, and promote it unless harm is proven"
    canary = add("canary", "promote_command:run_canary", text, codes)
    canary.add_argument("name", metavar="NAME", help="of the registered model")
    canary.add_argument("--log", metavar="FOLDER", help="what `gauntlet serve --request-log --log-inputs all` wrote")
    step = "logged requests that the challenger has to answer in each step; by default 200"
    canary.add_argument("--per-step", type=at_least(1), default=200, metavar="N", help=step)
    every = "seconds between looks, until it has ended; by default one look"
    canary.add_argument("--every", type=at_least(1), metavar="S", help=every)
    canary.add_argument("--stop", action="store_true", help="end it: the champion answers everything")
    canary.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    _add_monitor_limits(canary)
    _add_replay_limits(canary)


def _add_upgrade(add: AddCommand) -> None:
    codes = f"exit codes: 0 it may be moved, 1 refused, {INVALID}, 3 the runtime or the registry cannot be used"
    text = "try the champion in another release of ONNX Runtime: outputs, latency, memory, and a verdict"
    upgrade = add("upgrade", "promote_command:try_runtime", text, codes)
    upgrade.add_argument("name", metavar="NAME", help="of the registered model")
    runtime = "onnxruntime==VERSION, or the folder of a Python environment with it"
    upgrade.add_argument("runtime", metavar="RUNTIME", help=runtime)
    replayed = "requests to replay; by default the run's test samples"
    upgrade.add_argument("--requests", metavar="FILE.npz|FOLDER", help=replayed)
    reason = "why it may need more memory, or have other golden outputs"
    upgrade.add_argument("--why", default="", metavar="TEXT", help=reason)
    _add_replay_limits(upgrade, max_slowdown=0.02, rounds=48)


def _add_replay_limits(
    command: argparse.ArgumentParser | argparse._ArgumentGroup, max_slowdown: float = 0.05, rounds: int = 16
) -> None:
    """Add the limits of a shadow replay."""
    drop = "loss of the problem's metric on labeled requests; by default 0.01"
    command.add_argument("--max-accuracy-drop", type=float, metavar="SHARE", help=drop)
    differ = "without labels: disagreement with the champion; by default 0.02"
    command.add_argument("--max-disagreement", type=float, metavar="SHARE", help=differ)
    lost = "recall or precision that a single class is proven to lose; by default 0.1"
    command.add_argument("--max-class-drop", type=float, metavar="SHARE", help=lost)
    added = f"latency that may be added; by default {max_slowdown}"
    command.add_argument("--max-slowdown", type=float, metavar="SHARE", help=added)
    unresolved = "what to do when a limit is proven neither kept nor broken; by default reject"
    command.add_argument("--unresolved", choices=["accept", "reject"], help=unresolved)
    command.add_argument(
        "--rounds", type=at_least(6), metavar="N", help=f"rounds of the latency race; by default {rounds}"
    )


def _add_monitor(add: AddCommand) -> None:
    codes = f"exit codes: 0 no alarm, or a harmless one, 1 any other alarm, {INVALID}, 3 a file is damaged"
    text = "find out from a request log whether a shipped model's inputs, outputs or errors have changed"
    monitor = add("monitor", "monitor_command:monitor_model", text, codes)
    monitor.add_argument("source", metavar="NAME|BUNDLE", help="a registered model, whose champion it is, or a bundle")
    monitor.add_argument("--log", required=True, metavar="FOLDER", help="what `gauntlet serve --request-log` wrote")
    out = "for monitor.html, monitor.json and the history; by default in the log's folder"
    monitor.add_argument("--out", metavar="FOLDER", help=out)
    _add_monitor_limits(monitor)
    back = "roll the champion back once it is proven worse than the one before"
    monitor.add_argument("--roll-back", action="store_true", help=back)
    drop = "with --roll-back: accuracy that may be lost; by default as at the promotion, or 0.01"
    monitor.add_argument("--max-accuracy-drop", type=float, metavar="SHARE", help=drop)
    every = "seconds between looks, until a rollback or an interrupt"
    monitor.add_argument("--every", type=at_least(1), metavar="S", help=every)
    monitor.add_argument("--restart", action="store_true", help="forget the history; begin with what is logged now")
    monitor.add_argument("--json", action="store_true", help="print JSON")


def _add_monitor_limits(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add what a monitor raises an alarm at."""
    rate = "probability of ever raising a false alarm; by default 0.05"
    command.add_argument("--false-alarms", type=float, metavar="SHARE", help=rate)
    risk = "wrong predictions that may be added to the evaluation's share; by default 0.05"
    command.add_argument("--max-error-increase", type=float, metavar="SHARE", help=risk)
    failed = "share of requests that may fail, or have outputs that are not finite; by default 0.01"
    command.add_argument("--max-failed-share", type=float, metavar="SHARE", help=failed)
    latency = "latency that 99 %% of the requests must keep; by default the run's serve.objective"
    command.add_argument("--p99-ms", type=float, metavar="MS", help=latency)
    window = "hours within which labels come; by default 48"
    command.add_argument("--label-window-h", type=float, metavar="H", help=window)
    season = "hours of a cycle of the requests, by default 24; 0 for none"
    command.add_argument("--season-h", type=float, metavar="H", help=season)


def _add_retrain(add: AddCommand) -> None:
    codes = f"exit codes: 0 promoted, or done before, 1 the champion was kept, {INVALID} or too few labels, 3 it broke"
    text = "train a shipped model again with labeled requests, and promote it if it is proven better on them"
    retrain = add("retrain", "retrain_command:retrain_model", text, codes)
    retrain.add_argument("name", metavar="NAME", help="of the registered model; its champion's configuration is run")
    logged = "what `gauntlet serve --request-log --log-inputs all` wrote"
    retrain.add_argument("--log", required=True, metavar="FOLDER", help=logged)
    least = "labeled samples that are needed; by default 200"
    retrain.add_argument("--min-labeled", type=at_least(20), metavar="N", help=least)
    held = "share of the labeled requests, the latest, that judges instead of training; by default 0.3"
    retrain.add_argument("--held-back", type=float, metavar="SHARE", help=held)
    retrain.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    fresh = "repeat everything, also a retraining with the same requests"
    retrain.add_argument("--fresh", action="store_true", help=fresh)
    _add_replay_limits(retrain)


def add_options(commands: Commands) -> None:
    """Add the options of a served champion to `gauntlet up`, where that is installed."""
    if (up := commands.choices.get("up")) is None:
        return
    served = "serve this model's champion with a request log, watch and retrain it"
    up.add_argument("--serve", metavar="NAME", default="", help=served)
    up.add_argument("--serve-port", type=port, default=8080, help="by default 8080, or a free one")
    every = "with --serve: seconds between two looks at the champion; by default 300"
    up.add_argument("--watch-every", type=at_least(1), metavar="S", help=every)
    share = "with --serve: share of the requests that is logged, and so watched; by default 1"
    up.add_argument("--log-share", type=float, metavar="SHARE", help=share)
    _add_monitor_limits(up.add_argument_group("when the watch raises an alarm, with --serve"))
    limits = up.add_argument_group("what a retrained model may lose against the champion, with --serve")
    _add_replay_limits(limits)
