"""The options of what follows a run: bundles, promotion, serving and monitoring."""

import argparse
from collections.abc import Callable

from flows.cli.argument_types import at_least

INVALID = "2 invalid configuration or arguments"
EXIT_CODES = f"exit codes: 0 passed, 1 a gate failed, {INVALID}, 3 a stage broke, 130 interrupted, 143 terminated"

AddCommand = Callable[..., argparse.ArgumentParser]
"""Takes the name of a command, its function as `module:function`, its help, and an epilog."""


def add_shipping_commands(add: AddCommand) -> None:
    """Add the commands."""
    _add_bundle_commands(add)
    _add_promotion_commands(add)
    _add_serve(add)
    _add_monitor(add)
    _add_retrain(add)


def _add_bundle_commands(add: AddCommand) -> None:
    bundle = add("bundle", "bundle:bundle_run", "copy a run's winner, with all that its users need")
    bundle.add_argument("run", nargs="?", help="id of the run, or its first characters; the newest by default")
    bundle.add_argument("--out", metavar="FILE.zip|FOLDER", help="where to; by default NAME.zip in this folder")
    bundle.add_argument("--key", metavar="KEY.pem", help="sign the copy with this elliptic curve key")
    page = "write a static page that runs the model in the browser, instead of a copy unless --out is given, too"
    bundle.add_argument("--web", metavar="FOLDER", help=page)
    device = "write the model in ONNX Runtime's format with its operator list and examples; --out as with --web"
    bundle.add_argument("--edge", metavar="FOLDER", help=device)
    learning = "write a classifier split at its last layer, with that layer's training step; --out as with --web"
    bundle.add_argument("--trainable", metavar="FOLDER", help=learning)
    codes = f"exit codes: 0 verified, 1 something does not hold, {INVALID}"
    verify = add("verify", "verify:verify_bundle", "prove a bundle again, without a server or a network", codes)
    verify.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    verify.add_argument("--key", metavar="PUB.pem", help="require a signature by this public key")
    verify.add_argument("--json", action="store_true", help="print JSON")
    codes = f"exit codes: 0 predicted, 1 an image cannot be read, {INVALID}, 3 the model cannot run, 130 interrupted"
    predict = add("predict", "predict:predict", "predict images, arrays or a video with a bundle", codes)
    predict.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    inputs = "images, folders of images, - for an image on standard input; or one .npz file with arrays by input; or "
    inputs += "one video: a file, camera:0, or the address of a stream (http, rtsp)"
    predict.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    predict.add_argument("--json", action="store_true", help="print one JSON object a line for each input")
    drawn = "write the images or frames with their predictions drawn; of a video also as a video"
    predict.add_argument("--draw", metavar="FOLDER|FILE.mp4", help=drawn)
    predict.add_argument("--out", metavar="FILE.npz", help="write the model's outputs for an .npz file")
    predict.add_argument("--threads", type=at_least(1), metavar="N", help="by default as in the race")
    predict.add_argument("--frames", type=at_least(1), metavar="N", help="predict at most so many frames of a video")
    silent = "give a camera or stream up that sends nothing for so long; by default 10"
    predict.add_argument("--timeout", type=at_least(1), metavar="S", help=silent)


def _add_promotion_commands(add: AddCommand) -> None:
    codes = f"exit codes: 0 done, 1 refused, {INVALID}, 3 the registry or a model cannot be used"
    promote = add(
        "promote", "promote:promote_bundle", "register a bundle, and make it the champion if it is no worse", codes
    )
    promote.add_argument("source", metavar="RUN|BUNDLE", help="id of a run, a bundle, or models:/NAME@challenger")
    promote.add_argument("--as", dest="role", choices=["champion", "challenger"], default="champion", help="the alias")
    promote.add_argument("--name", help="of the registered model; by default, the run's")
    promote.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    replayed = "an .npz file or a folder of images to replay; by default, the run's test samples"
    promote.add_argument("--requests", metavar="FILE.npz|FOLDER", help=replayed)
    won = "labeled requests, in the same forms, on which it must be proven better than the champion"
    promote.add_argument("--must-win-on", metavar="FILE.npz|FOLDER", help=won)
    add_replay_limits(promote)
    rollback = add("rollback", "promote:roll_back", "make the previous champion the champion again", codes)
    rollback.add_argument("name", metavar="NAME", help="of the registered model")
    rollback.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    text = "show what was promoted, refused and rolled back, and whether the record is intact"
    intact = f"exit codes: 0 intact, 1 the chain is broken or the registry disagrees, {INVALID}"
    history = add("history", "history:show_history", text, intact)
    history.add_argument("name", metavar="NAME", help="of the registered model")
    compare = add("compare", "compare:show_comparison", "compare two runs: winners, gates, settings")
    for which in ("first", "second"):
        compare.add_argument(which, metavar="RUN", help="id of a run, or its first characters")
    for command in (history, compare):
        command.add_argument("--json", action="store_true", help="print JSON")


def add_replay_limits(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the limits of a shadow replay."""
    drop = "accuracy, or the problem's metric, that may be lost on labeled requests; by default 0.01"
    command.add_argument("--max-accuracy-drop", type=float, metavar="SHARE", help=drop)
    differ = "without labels: how far predictions may differ from the champion's; by default 0.02"
    command.add_argument("--max-disagreement", type=float, metavar="SHARE", help=differ)
    command.add_argument(
        "--max-slowdown", type=float, metavar="SHARE", help="latency that may be added; by default 0.05"
    )
    unresolved = "what to do when the requests prove neither that a limit is kept nor broken; by default reject"
    command.add_argument("--unresolved", choices=["accept", "reject"], help=unresolved)
    command.add_argument("--rounds", type=at_least(6), metavar="N", help="rounds of the latency race; by default 16")


def _add_serve(add: AddCommand) -> None:
    codes = f"exit codes: 0 stopped, 1 a bundle cannot be served, {INVALID}"
    serve = add("serve", "serve:serve_bundles", "serve bundles over HTTP (Open Inference Protocol v2)", codes)
    serve.add_argument("bundles", nargs="*", metavar="BUNDLE", help="folder or .zip of a bundle, or models:/NAME@ALIAS")
    serve.add_argument("--name", help="name of the model in addresses; by default the bundle's")
    wait = "start without a model where models:/NAME@ALIAS names nothing yet, and serve what it comes to name"
    serve.add_argument("--wait", action="store_true", help=wait)
    serve.add_argument("--repository", metavar="FOLDER", help="bundles that clients may load by name")
    serve.add_argument("--host", default="127.0.0.1", help="by default 127.0.0.1; any other needs --token-file")
    serve.add_argument("--port", type=int, default=8080, help="by default 8080; 0 takes a free one")
    serve.add_argument(
        "--token-file", metavar="FILE", help="with the token that clients send as `Bearer`; or $GAUNTLET_TOKEN"
    )
    serve.add_argument("--threads", type=at_least(1), metavar="N", help="of a session; by default the winner's")
    deadline = "from arrival to outputs, by default 1000; what would take longer is refused with 429"
    serve.add_argument("--deadline-ms", type=float, metavar="MS", help=deadline)
    serve.add_argument("--max-queue", type=at_least(1), metavar="N", help="requests that wait, by default 1024")
    serve.add_argument("--max-rows", type=at_least(1), metavar="N", help="samples of a request, by default 256")
    serve.add_argument("--max-body-mb", type=float, metavar="MB", help="size of a request, by default 64")
    serve.add_argument("--max-image-megapixels", type=float, metavar="MP", help="size of an image, by default 32")
    serve.add_argument("--read-timeout-s", type=float, metavar="S", help="to receive a request, by default 30")
    logged = "log outputs, latencies and ids of requests into this folder, for `gauntlet monitor`; by default no log"
    serve.add_argument("--request-log", metavar="FOLDER", help=logged)
    serve.add_argument("--log-share", type=float, metavar="SHARE", help="of the requests in the log, by default 1")
    kept = "what the log keeps of inputs: by default statistics, a few numbers of each; embeddings adds what the last"
    kept += " layer takes; all needs much space"
    serve.add_argument("--log-inputs", choices=["none", "statistics", "embeddings", "all"], help=kept)
    serve.add_argument("--log-max-mb", type=float, metavar="MB", help="size of the request log, by default 1000")
    levels = ["debug", "info", "warning", "error"]
    serve.add_argument("--log-level", choices=levels, default="info", help="`info` logs each request")


def _add_monitor(add: AddCommand) -> None:
    codes = f"exit codes: 0 no alarm, or a harmless one, 1 any other alarm, {INVALID}, 3 a file is damaged"
    text = "find out from a request log whether a shipped model's inputs, outputs or errors have changed"
    monitor = add("monitor", "monitor:monitor_model", text, codes)
    monitor.add_argument("source", metavar="NAME|BUNDLE", help="a registered model, whose champion it is, or a bundle")
    monitor.add_argument("--log", required=True, metavar="FOLDER", help="what `gauntlet serve --request-log` wrote")
    out = "for monitor.html, monitor.json and the history; by default in the log's folder"
    monitor.add_argument("--out", metavar="FOLDER", help=out)
    rate = "probability of ever raising an alarm while nothing changes; by default 0.05"
    monitor.add_argument("--false-alarms", type=float, metavar="SHARE", help=rate)
    risk = "share of wrong predictions that may be added to the evaluation's; by default 0.05"
    monitor.add_argument("--max-error-increase", type=float, metavar="SHARE", help=risk)
    failed = "share of requests that may fail, and of outputs that may not be finite; by default 0.01"
    monitor.add_argument("--max-failed-share", type=float, metavar="SHARE", help=failed)
    latency = "latency that 99 %% of the requests must keep; by default the run's serve.objective"
    monitor.add_argument("--p99-ms", type=float, metavar="MS", help=latency)
    back = "roll the champion back once it is proven worse than the one before it; see the guide on promotion"
    monitor.add_argument("--roll-back", action="store_true", help=back)
    drop = "with --roll-back: accuracy that may be lost; by default what the promotion allowed, or 0.01"
    monitor.add_argument("--max-accuracy-drop", type=float, metavar="SHARE", help=drop)
    every = "look again every so many seconds, until the champion is rolled back or the command is interrupted"
    monitor.add_argument("--every", type=at_least(1), metavar="S", help=every)
    monitor.add_argument("--restart", action="store_true", help="forget the history; begin with what is logged now")
    monitor.add_argument("--json", action="store_true", help="print JSON")


def _add_retrain(add: AddCommand) -> None:
    codes = f"exit codes: 0 promoted, or done before, 1 the champion was kept, {INVALID} or too few labels, 3 it broke"
    text = "train a shipped model again with labeled requests, and promote it if it is proven better on them"
    retrain = add("retrain", "retrain:retrain_model", text, codes)
    retrain.add_argument("name", metavar="NAME", help="of the registered model; its champion's configuration is run")
    logged = "what `gauntlet serve --request-log --log-inputs all` wrote, with the labels that were sent"
    retrain.add_argument("--log", required=True, metavar="FOLDER", help=logged)
    least = "labeled samples that are needed; by default 200"
    retrain.add_argument("--min-labeled", type=at_least(20), metavar="N", help=least)
    held = "share of the labeled requests that is not trained on, but judges; by default 0.3"
    retrain.add_argument("--held-back", type=float, metavar="SHARE", help=held)
    retrain.add_argument("--why", default="", metavar="TEXT", help="the reason, for the ledger")
    fresh = "repeat everything, also a retraining with the same requests"
    retrain.add_argument("--fresh", action="store_true", help=fresh)
    add_replay_limits(retrain)
