"""The parser of all commands. It imports argparse alone, so that `gauntlet --help` answers at once.

Each command names the function that runs it as text; `main` imports it when the command is called.
"""

import argparse
from collections.abc import Callable

INVALID = "2 invalid configuration or arguments"
EXIT_CODES = f"exit codes: 0 passed, 1 a gate failed, {INVALID}, 3 a stage broke, 130 interrupted, 143 terminated"

AddCommand = Callable[..., argparse.ArgumentParser]
"""Takes the name of a command, its function as `module:function`, its help, and an epilog."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="gauntlet",
        description="Run a model through the gauntlet: train, export, check, optimize, quantize, race, select.",
        epilog=EXIT_CODES,
    )
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: str, text: str, epilog: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, epilog=epilog)
        command.set_defaults(command=f"flows.cli.{function}")
        return command

    _add_pipeline_commands(add)
    _add_home_commands(add)
    _add_bundle_commands(add)
    _add_promotion_commands(add)
    _add_file_commands(add)
    _add_bench(add)
    _add_targets(add)
    _add_serve(add)
    _add_monitor(add)
    return top


class _PrintVersion(argparse.Action):
    """Like argparse's own `version` action, but the version is looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(parser.prog, version("onnx-gauntlet"))  # noqa: T201
        parser.exit()


def _add_pipeline_commands(add: AddCommand) -> None:
    run = add("run", "run:run_pipeline", "run the pipeline", EXIT_CODES)
    run.add_argument("--fresh", action="store_true", help="repeat everything; use no results of earlier runs")
    source = "a YAML file, the name of a preset, a model file, or a JAX function as FILE.py:FUNCTION"
    run.add_argument("config", metavar="CONFIG|MODEL", help=source)
    data = "samples for a model: a folder of images, or an .npz file with inputs by name; random ones by default"
    run.add_argument("--data", metavar="FOLDER|FILE.npz", help=data)
    run.add_argument("--labels", metavar="FILE", help="names of a model's classes, one a line, by class index")
    shape = "shape of one sample, where a model leaves it open; may be repeated"
    run.add_argument("--shape", type=_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape)
    parameters = "a JAX function's first argument: an .npz or .msgpack file of arrays"
    run.add_argument("--parameters", metavar="FILE", help=parameters)
    trust = "read a model file that may run code, because you trust its author; needed once for each file"
    run.add_argument("--trust", action="store_true", help=trust)
    validate = add("validate", "validate:validate_config", "check a configuration without running it")
    validate.add_argument("--schema", action="store_true", help="print the JSON Schema of a configuration and exit")
    validate.add_argument("config", nargs="?", help="a YAML file, or the name of a preset")
    one = "exit codes: 0 every model passed, 1 one did not, " + INVALID + ", 130 interrupted, 143 terminated"
    fleet = add("fleet", "fleet:run_fleet", "run the pipeline for every model of a folder", one)
    models = "model files, each with its samples in an .npz file of the same name, or YAML files; also below it"
    fleet.add_argument("folder", metavar="FOLDER", help=models)
    fleet.add_argument("--workers", type=_at_least(1), default=1, metavar="N", help="models at a time; by default 1")
    fleet.add_argument("--fresh", action="store_true", help="begin anew; use no results of earlier runs")
    for command in (run, validate, fleet):
        change = "change one value; may be repeated"
        command.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=change)


def _add_home_commands(add: AddCommand) -> None:
    show = add("show", "show:show_run", "show the report of a run")
    show.add_argument("run", nargs="?", help="id of the run, or its first characters; the newest by default")
    show.add_argument("--json", action="store_true", help="print report.json")
    ui = add("ui", "ui:serve_ui", "serve the Prefect and MLflow pages on this machine until Ctrl-C")
    ui.add_argument("--prefect-port", type=int, default=4200, help="by default 4200, or a free one")
    ui.add_argument("--mlflow-port", type=int, default=5000, help="by default 5000, or a free one")
    up = add("up", "up:start_platform", "start Prefect, MLflow, the deployments and a worker on this machine")
    up.add_argument("--prefect-port", type=int, default=4200, help="by default 4200, or a free one")
    up.add_argument("--mlflow-port", type=int, default=5000, help="by default 5000, or a free one")
    up.add_argument("--serve", metavar="NAME", default="", help="serve this registered model's champion, too")
    up.add_argument("--serve-port", type=int, default=8080, help="by default 8080, or a free one")
    status = add("status", "up:show_status", "show what `gauntlet up` started")
    status.add_argument("--json", action="store_true", help="print JSON")
    add("down", "up:stop_platform", "stop what `gauntlet up` started")
    add("sync", "sync:sync_runs", "send to MLflow what could not be sent during a run")
    clean = add("clean", "clean:clean_home", "free the disk space of old runs, and of what no kept run refers to")
    clean.add_argument("--keep-runs", type=_at_least(0), metavar="N", help="keep the N newest runs; by default all")
    clean.add_argument("--older-than", type=float, metavar="DAYS", help="remove only runs that ended longer ago")
    clean.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


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
    codes = f"exit codes: 0 predicted, 1 an image cannot be read, {INVALID}, 3 the model cannot run"
    predict = add("predict", "predict:predict", "predict images or arrays with a bundle", codes)
    predict.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    inputs = "images, folders of images, - for an image on standard input, or one .npz file with arrays by input"
    predict.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    predict.add_argument("--json", action="store_true", help="print one JSON object a line for each input")
    predict.add_argument("--draw", metavar="FOLDER", help="write the images with their predictions drawn")
    predict.add_argument("--out", metavar="FILE.npz", help="write the model's outputs for an .npz file")
    predict.add_argument("--threads", type=_at_least(1), metavar="N", help="by default as in the race")


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
    drop = "accuracy that may be lost on labeled requests; by default 0.01"
    promote.add_argument("--max-accuracy-drop", type=float, metavar="SHARE", help=drop)
    differ = "without labels: share of requests that may be predicted differently; by default 0.02"
    promote.add_argument("--max-disagreement", type=float, metavar="SHARE", help=differ)
    promote.add_argument(
        "--max-slowdown", type=float, metavar="SHARE", help="latency that may be added; by default 0.05"
    )
    unresolved = "what to do when the requests prove neither that a limit is kept nor broken; by default reject"
    promote.add_argument("--unresolved", choices=["accept", "reject"], help=unresolved)
    promote.add_argument("--rounds", type=_at_least(6), metavar="N", help="rounds of the latency race; by default 16")
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


def _add_file_commands(add: AddCommand) -> None:
    codes = f"exit codes: 0 no error found, 1 an error found, {INVALID}, 3 the file cannot be read"
    diagnose = add("diagnose", "diagnose:diagnose_model", "find common faults of a model, and fix them", codes)
    diagnose.add_argument("model", metavar="MODEL", help="an .onnx file; it is opened in a process of its own")
    diagnose.add_argument("--data", metavar="FILE.npz", help="samples by input name, and expected outputs by theirs")
    diagnose.add_argument("--layout", choices=["NCHW", "NHWC"], help="memory layout of the caller's images")
    diagnose.add_argument("--constants", metavar="FILE.npz", help="values of leaked constants, by input name")
    diagnose.add_argument("--fix", metavar="OUT.onnx", help="write a copy in which what can be fixed safely is fixed")
    names = (
        "also say which nodes each target takes and where the others run; names from `gauntlet targets`, by default "
    )
    names += "one target of each kind"
    diagnose.add_argument("--targets", type=_names, nargs="?", const=[], metavar="NAME,...", help=names)
    diagnose.add_argument("--timeout", type=float, metavar="SECONDS", help="by default 7, more for large files")
    diagnose.add_argument("--json", action="store_true", help="print JSON")
    shows = "show what a model holds: shapes, parameters, MACs, layers, graph"
    inspect = add("inspect", "inspect:inspect_model", shows)
    inspect.add_argument("model", metavar="MODEL", help="an .onnx file; its external data is not read")
    views = inspect.add_mutually_exclusive_group()
    views.add_argument("--graph", action="store_true", help="print every node with its shapes")
    views.add_argument(
        "--weights", action="store_true", help="print the range, mean and spread of each layer's weights"
    )
    views.add_argument("--json", action="store_true", help="print JSON")


def _add_bench(add: AddCommand) -> None:
    codes = f"exit codes: 0 measured, 1 a model failed or is not what it claims to be, {INVALID}, 3 a stage broke"
    bench = add("bench", "bench:bench", "race any ONNX models on any targets", codes)
    bench.add_argument("models", nargs="+", metavar="MODEL", help=".onnx files; the first is the reference")
    _add_bench_targets(bench)
    _add_bench_race(bench)
    bench.add_argument("--json", action="store_true", help="print JSON")
    bench.add_argument("--plot", metavar="FILE", help="plot latency against batch size into a .png or .svg file")
    bench.add_argument("--mlflow", metavar="EXPERIMENT", help="record the results in MLflow, too")


def _add_bench_targets(bench: argparse.ArgumentParser) -> None:
    names = "names from `gauntlet targets`, or all; the first that can run here is the reference; by default ort-cpu"
    bench.add_argument("--targets", type=_names, default=[], metavar="NAME,...", help=names)
    target = "one more target, with its options, as in a configuration: kind=openvino,precision=bf16,env=FOLDER"
    bench.add_argument("--target", type=_options, action="append", default=[], metavar="kind=KIND,...", help=target)
    threads = "of each session; by default all that may be used. ort-cpu also races with each further number"
    bench.add_argument("--threads", type=_sizes, metavar="N,...", help=threads)
    other = "race ort-cpu with other session options, too: "
    other += "threads=1, spinning=false, arena=false, parallel=true, level=extended"
    bench.add_argument("--session", type=_options, action="append", default=[], metavar="OPTION=VALUE,...", help=other)
    model = "a run's trained model (.pt, .keras, .zip, .npz, .skops), for the targets of its framework"
    bench.add_argument("--framework-model", metavar="FILE", help=model)
    bench.add_argument("--source", dest="framework_model", metavar="FILE", help=argparse.SUPPRESS)  # its old name
    trust = "run the code that this file brings; the trained model of a run in this home needs no trust"
    bench.add_argument("--trust", action="store_true", help=trust)
    memory = "memory limit of each worker; by default half of what this process may use"
    bench.add_argument("--memory-gb", type=float, metavar="GB", help=memory)


def _add_bench_race(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--batch", type=_sizes, default=[1, 8], metavar="N,...", help="batch sizes; by default 1,8")
    bench.add_argument("--rounds", type=_at_least(6), default=16, help="by default 16, at least 6")
    bench.add_argument("--block-ms", type=float, default=60.0, help="time of each pair in a round and batch size")
    drop = "drop pairs early once they are proven not to be the fastest"
    bench.add_argument("--early-stopping", action="store_true", help=drop)
    bench.add_argument("--early-drop", dest="early_stopping", action="store_true", help=argparse.SUPPRESS)  # old name
    bench.add_argument("--inputs", metavar="FILE.npz", help="samples by input name; by default random")
    shape = "shape of one sample, where the model leaves it open; may be repeated"
    bench.add_argument("--shape", type=_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape)
    bench.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for any one reply of a worker")
    bench.add_argument("--seed", type=int, default=0, help="of the random inputs and the order of the race")


def _add_targets(add: AddCommand) -> None:
    text = "list the execution targets that can run here, and why others cannot"
    targets = add("targets", "targets:show_targets", text)
    targets.add_argument("--json", action="store_true", help="print JSON")
    subcommands = targets.add_subparsers(metavar="install NAME")
    install = subcommands.add_parser("install", help="create the Python environment of a target")
    install.set_defaults(command="flows.cli.targets:install_environment")
    install.add_argument("name", metavar="NAME", help="openvino, or web")


def _add_serve(add: AddCommand) -> None:
    codes = f"exit codes: 0 stopped, 1 a bundle cannot be served, {INVALID}"
    serve = add("serve", "serve:serve_bundles", "serve bundles over HTTP (Open Inference Protocol v2)", codes)
    serve.add_argument("bundles", nargs="*", metavar="BUNDLE", help="folder or .zip of a bundle, or models:/NAME@ALIAS")
    serve.add_argument("--name", help="name of the model in addresses; by default the bundle's")
    serve.add_argument("--repository", metavar="FOLDER", help="bundles that clients may load by name")
    serve.add_argument("--host", default="127.0.0.1", help="by default 127.0.0.1; any other needs --token-file")
    serve.add_argument("--port", type=int, default=8080, help="by default 8080; 0 takes a free one")
    serve.add_argument(
        "--token-file", metavar="FILE", help="with the token that clients send as `Bearer`; or $GAUNTLET_TOKEN"
    )
    serve.add_argument("--threads", type=_at_least(1), metavar="N", help="of a session; by default the winner's")
    deadline = "from arrival to outputs, by default 1000; what would take longer is refused with 429"
    serve.add_argument("--deadline-ms", type=float, metavar="MS", help=deadline)
    serve.add_argument("--max-queue", type=_at_least(1), metavar="N", help="requests that wait, by default 1024")
    serve.add_argument("--max-rows", type=_at_least(1), metavar="N", help="samples of a request, by default 256")
    serve.add_argument("--max-body-mb", type=float, metavar="MB", help="size of a request, by default 64")
    serve.add_argument("--max-image-megapixels", type=float, metavar="MP", help="size of an image, by default 32")
    serve.add_argument("--read-timeout-s", type=float, metavar="S", help="to receive a request, by default 30")
    logged = "log outputs, latencies and ids of requests into this folder, for `gauntlet monitor`; by default no log"
    serve.add_argument("--request-log", metavar="FOLDER", help=logged)
    serve.add_argument("--log-share", type=float, metavar="SHARE", help="of the requests in the log, by default 1")
    kept = "what the log keeps of inputs: by default statistics, a few numbers of each; all needs much space"
    serve.add_argument("--log-inputs", choices=["none", "statistics", "all"], help=kept)
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
    monitor.add_argument("--restart", action="store_true", help="forget the history; begin with what is logged now")
    monitor.add_argument("--json", action="store_true", help="print JSON")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _sizes(text: str) -> list[int]:
    return [_at_least(1)(size) for size in text.split(",")]


def _options(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: write OPTION=VALUE,...")
    return {name: value for name, _, value in pairs}


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, axes = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write INPUT=3x224x224")
    return name, tuple(_at_least(1)(axis) for axis in axes.split("x"))
