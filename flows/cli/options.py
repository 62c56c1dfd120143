"""The parser of all commands. It imports argparse alone, so that `gauntlet --help` answers at once.

Each command names the function that runs it as text; `main` imports it when the command is called.
"""

import argparse
import contextlib

from flows.cli.argument_types import at_least, input_shape
from flows.cli.commands import EXIT_CODES, FIND, LOOK, SERVERS, USE, AddCommand, CommandParser, GroupedParser, adder
from gauntlet.core.kinds import kinds

TASKS: tuple[str, ...] = ("classification", "multi-label", "tagging", "regression", "ranking", "quantiles")
TASKS += ("detection", "segmentation", "text", "embedding", "arrays")
"""The problems of `gauntlet.core.signature.Task`, whose module takes long to import."""

RUNTIMES = ("onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "torch", "tensorflow", "jax")
"""Packages that `gauntlet --version` names where they are installed."""

SOURCE = "a YAML file, the name of a preset, a model file, or a JAX function as FILE.py:FUNCTION"
USES = {
    "run": (FIND, "gauntlet run model.onnx --data images"),
    "validate": (FIND, "gauntlet validate digits-resnet18 --set train.epochs=5"),
    "show": (LOOK, "gauntlet show"),
    "runs": (LOOK, "gauntlet runs --last 5"),
    "sync": (SERVERS, "gauntlet sync"),
    "bundle": (USE, "gauntlet bundle --out winner.zip"),
}
RUN = "id of a run, or its first characters"


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands: the core's, then those that wings and packages bring.

    An entry point `command.NAME` is a function that takes argparse's sub-parsers and adds its own. One of `option.NAME`
    then adds options to the commands of others, which are in their `choices`.
    """
    top = GroupedParser(
        prog="gauntlet",
        description="Run a model through the gauntlet: train, export, check, optimize, quantize, race, select.",
        epilog=EXIT_CODES,
    )
    text = "print the versions of this program and of the runtimes, and exit"
    top.add_argument("--version", action=_PrintVersion, nargs=0, help=text)
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    add = adder(commands, "flows.cli", USES)
    _add_pipeline_commands(add)
    _add_home_commands(add)
    _add_bundle(add)
    for add_more in (*kinds("command").values(), *kinds("option").values()):
        add_more(commands)
    return top


class _PrintVersion(argparse.Action):
    """Like argparse's own `version` action, but the versions are looked up only when they are asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import platform
        from importlib.metadata import PackageNotFoundError, version

        versions = [f"Python {platform.python_version()}"]
        for name in RUNTIMES:
            with contextlib.suppress(PackageNotFoundError):
                versions.append(f"{name} {version(name)}")
        print(parser.prog, version("onnx-gauntlet"), f"({', '.join(versions)})")  # noqa: T201
        parser.exit()


def _add_pipeline_commands(add: AddCommand) -> None:
    run = add("run", "run:run_pipeline", "run the pipeline", EXIT_CODES)
    run.add_argument("--fresh", action="store_true", help="use no results of earlier runs")
    limit = "about how long it may take: fewer recipes and rounds, every gate"
    run.add_argument("--minutes", type=at_least(1), metavar="N", help=limit)
    run.add_argument("--out", metavar="FILE.onnx", help="copy the winner to a new file")
    run.add_argument("--dry-run", action="store_true", help="only show what would be tried")
    run.add_argument("config", metavar="CONFIG|MODEL", help=SOURCE)
    text = "show what a run would try, without running it"
    validate = add("validate", "validate:validate_config", text)
    validate.add_argument("--schema", action="store_true", help="print the JSON Schema of configurations")
    several = f"{SOURCE}; several are validated one by one"
    validate.add_argument("config", metavar="CONFIG|MODEL", nargs="*", default=[], help=several)
    for command in (run, validate):
        add_model_options(command)
        add_settings(command)


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say what a model takes and gives."""
    data = (
        "samples for a model: a folder of images or .wav files, .npz with inputs by name, .npy, a table (.csv, .tsv, "
        ".parquet, .jsonl), or FILE.py:FUNCTION that gives batches; random ones by default"
    )
    command.add_argument("--data", metavar="FOLDER|FILE", help=data)
    command.add_argument("--labels", metavar="FILE", help="names of a model's classes, one a line, by class index")
    shape = "shape of one sample, where a model leaves it open; further ones are sizes to judge and race"
    command.add_argument(
        "--shape", type=input_shape, action="append", default=[], metavar="INPUT=3x224x224", help=shape
    )
    task = f"what the outputs of a model mean, by default inferred: {', '.join(TASKS)}"
    command.add_argument("--task", choices=TASKS, metavar="TASK", help=task)
    group = "keep samples of one value in one split: a column, an array of the .npz file, or a pattern of images' paths"
    command.add_argument("--group", metavar="COLUMN|REGEX", help=group)
    time = "take the latest samples by this column, or array, for the test, and the earliest to calibrate"
    command.add_argument("--time", metavar="COLUMN", help=time)
    threshold = "probability from which on the second of two classes is predicted; by default 0.5"
    command.add_argument("--threshold", type=float, metavar="P", help=threshold)
    parameters = "a JAX function's first argument: an .npz or .msgpack file of arrays"
    command.add_argument("--parameters", metavar="FILE", help=parameters)
    trust = "read a model file that may run code; needed once for each file"
    command.add_argument("--trust", action="store_true", help=trust)


def add_settings(command: argparse.ArgumentParser) -> None:
    """Add the option that changes single values of a configuration."""
    change = "change one value; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=change)


def _add_home_commands(add: AddCommand) -> None:
    show = add("show", "runs:show_run", "show the report of a run")
    show.add_argument("run", nargs="?", help=f"{RUN}; the newest by default")
    show.add_argument("--json", action="store_true", help="print report.json")
    runs = add("runs", "runs:list_runs", "list the runs, newest first")
    runs.add_argument("--last", type=at_least(1), metavar="N", help="the N newest runs; by default all")
    add("sync", "runs:sync_runs", "send to MLflow what could not be sent during a run")


def _add_bundle(add: AddCommand) -> None:
    bundle = add("bundle", "bundle:bundle_run", "copy a run's winner, with all that its users need")
    bundle.add_argument("run", nargs="?", help=f"{RUN}; the newest with a bundle by default")
    bundle.add_argument("--out", metavar="FILE.zip|FOLDER", help="where to; by default NAME.zip in this folder")
    bundle.add_argument("--key", metavar="KEY.pem", help="sign the copy with this elliptic curve key")
    for kind, deliver in kinds("delivery").items():
        first = (deliver.__doc__ or kind).splitlines()[0].rstrip(".")
        text = f"{first[:1].lower()}{first[1:]}, instead of a copy or, with --out, besides"
        bundle.add_argument(f"--{kind}", dest=f"as_{kind}", metavar="FOLDER", help=text)
