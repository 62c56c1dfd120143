"""The parser of all commands. It imports argparse alone, so that `gauntlet --help` answers at once.

Each command names the function that runs it as text; `main` imports it when the command is called.
"""

import argparse

from flows.cli.argument_types import at_least, input_shape, names, pairs, sizes
from flows.cli.shipping_options import EXIT_CODES, INVALID, AddCommand, add_replay_limits, add_shipping_commands


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
    _add_file_commands(add)
    _add_bench(add)
    _add_targets(add)
    add_shipping_commands(add)
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
    run.add_argument("--shape", type=input_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape)
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
    fleet.add_argument("--workers", type=at_least(1), default=1, metavar="N", help="models at a time; by default 1")
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
    text = "start Prefect, MLflow, the deployments and workers on this machine; serve, watch and retrain a champion"
    up = add("up", "up:start_platform", text)
    up.add_argument("--prefect-port", type=int, default=4200, help="by default 4200, or a free one")
    up.add_argument("--mlflow-port", type=int, default=5000, help="by default 5000, or a free one")
    _add_served_champion(up)
    status = add("status", "up:show_status", "show what `gauntlet up` started")
    status.add_argument("--json", action="store_true", help="print JSON")
    add("down", "up:stop_platform", "stop what `gauntlet up` started")
    _add_worker(add)
    add("sync", "sync:sync_runs", "send to MLflow what could not be sent during a run")
    clean = add("clean", "clean:clean_home", "free the disk space of old runs, and of what no kept run refers to")
    clean.add_argument("--keep-runs", type=at_least(0), metavar="N", help="keep the N newest runs; by default all")
    clean.add_argument("--older-than", type=float, metavar="DAYS", help="remove only runs that ended longer ago")
    clean.add_argument("--shared", action="store_true", help="clean $GAUNTLET_STORE, for the runs of all machines")
    clean.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def _add_served_champion(up: argparse.ArgumentParser) -> None:
    served = "serve this registered model's champion with a request log, watch it, and retrain it when harm is proven"
    up.add_argument("--serve", metavar="NAME", default="", help=served)
    up.add_argument("--serve-port", type=int, default=8080, help="by default 8080, or a free one")
    every = "with --serve: seconds between two looks at the champion; by default 300"
    up.add_argument("--watch-every", type=at_least(1), metavar="S", help=every)
    limits = up.add_argument_group("what a retrained model may lose against the champion, with --serve")
    add_replay_limits(limits)


def _add_worker(add: AddCommand) -> None:
    text = "race targets on this machine for the runs of other machines, until Ctrl-C"
    worker = add("worker", "worker:start_worker", text)
    pool = "work pool of machines like this one, which benchmark.targets names as `on`; created if there is none"
    worker.add_argument("--pool", required=True, metavar="NAME", help=pool)
    store = "where this machine has the store of the runs; by default the path that each run has itself"
    worker.add_argument("--store", metavar="FOLDER", help=store)
    deploy = "only create the pool's deployment, for pools whose workers start in another way (Kubernetes, Docker)"
    worker.add_argument("--deploy-only", action="store_true", help=deploy)


def _add_file_commands(add: AddCommand) -> None:
    codes = f"exit codes: 0 no error found, 1 an error found, {INVALID}, 3 the file cannot be read"
    diagnose = add("diagnose", "diagnose:diagnose_model", "find common faults of a model, and fix them", codes)
    diagnose.add_argument("model", metavar="MODEL", help="an .onnx file; it is opened in a process of its own")
    diagnose.add_argument("--data", metavar="FILE.npz", help="samples by input name, and expected outputs by theirs")
    diagnose.add_argument("--layout", choices=["NCHW", "NHWC"], help="memory layout of the caller's images")
    diagnose.add_argument("--constants", metavar="FILE.npz", help="values of leaked constants, by input name")
    diagnose.add_argument("--fix", metavar="OUT.onnx", help="write a copy in which what can be fixed safely is fixed")
    which = (
        "also say which nodes each target takes and where the others run; names from `gauntlet targets`, by default "
    )
    which += "one target of each kind"
    diagnose.add_argument("--targets", type=names, nargs="?", const=[], metavar="NAME,...", help=which)
    diagnose.add_argument("--timeout", type=float, metavar="SECONDS", help="by default 7, more for large files")
    diagnose.add_argument("--json", action="store_true", help="print JSON")
    part = "write the part of a model between tensors inside it as a model of its own"
    cut = add("cut", "cut:cut", part, "exit codes: 0 written, " + INVALID + ", 3 the file cannot be read")
    cut.add_argument("model", metavar="MODEL", help="an .onnx file")
    cut.add_argument("output", metavar="OUT.onnx", help="where the part goes")
    inner = "tensors that become inputs; inputs that the part still needs stay"
    cut.add_argument("--inputs", type=names, default=[], metavar="NAME,...", help=inner)
    ends = "tensors that become the outputs; by default the model's own"
    cut.add_argument("--outputs", type=names, default=[], metavar="NAME,...", help=ends)
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
    which = "names from `gauntlet targets`, or all; the first that can run here is the reference; by default ort-cpu"
    bench.add_argument("--targets", type=names, default=[], metavar="NAME,...", help=which)
    target = "one more target, with its options, as in a configuration: kind=openvino,precision=bf16,env=FOLDER"
    bench.add_argument("--target", type=pairs, action="append", default=[], metavar="kind=KIND,...", help=target)
    threads = "of each session; by default all that may be used. ort-cpu also races with each further number"
    bench.add_argument("--threads", type=sizes, metavar="N,...", help=threads)
    other = "race ort-cpu with other session options, too: "
    other += "threads=1, spinning=false, arena=false, parallel=true, level=extended"
    bench.add_argument("--session", type=pairs, action="append", default=[], metavar="OPTION=VALUE,...", help=other)
    model = "a run's trained model (.pt, .keras, .zip, .npz, .skops), for the targets of its framework"
    bench.add_argument("--framework-model", metavar="FILE", help=model)
    bench.add_argument("--source", dest="framework_model", metavar="FILE", help=argparse.SUPPRESS)  # its old name
    trust = "run the code that this file brings; the trained model of a run in this home needs no trust"
    bench.add_argument("--trust", action="store_true", help=trust)
    memory = "memory limit of each worker; by default half of what this process may use"
    bench.add_argument("--memory-gb", type=float, metavar="GB", help=memory)


def _add_bench_race(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--batch", type=sizes, default=[1, 8], metavar="N,...", help="batch sizes; by default 1,8")
    bench.add_argument("--rounds", type=at_least(6), default=16, help="by default 16, at least 6")
    bench.add_argument("--block-ms", type=float, default=60.0, help="time of each pair in a round and batch size")
    drop = "drop pairs early once they are proven not to be the fastest"
    bench.add_argument("--early-stopping", action="store_true", help=drop)
    bench.add_argument("--early-drop", dest="early_stopping", action="store_true", help=argparse.SUPPRESS)  # old name
    bench.add_argument("--inputs", metavar="FILE.npz", help="samples by input name; by default random")
    shape = "shape of one sample, where the model leaves it open; may be repeated"
    bench.add_argument("--shape", type=input_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape)
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
