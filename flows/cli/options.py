"""The parser of all commands. It imports argparse alone, so that `gauntlet --help` answers at once.

Each command names the function that runs it as text; `main` imports it when the command is called.
"""

import argparse

from flows.cli.argument_types import at_least, input_shape
from flows.cli.commands import EXIT_CODES, INVALID, AddCommand, adder
from gauntlet.core.kinds import kinds

TASKS = ("classification", "multi-label", "regression", "detection", "segmentation", "text", "embedding", "arrays")
"""The problems of `gauntlet.core.signature.Task`, whose module takes long to import."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands: the core's, then those that wings and packages bring.

    An entry point `command.NAME` is a function that takes argparse's sub-parsers and adds its own. One of `option.NAME`
    then adds options to the commands of others, which are in their `choices`.
    """
    top = argparse.ArgumentParser(
        prog="gauntlet",
        description="Run a model through the gauntlet: train, export, check, optimize, quantize, race, select.",
        epilog=EXIT_CODES,
    )
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add = adder(commands, "flows.cli")
    _add_pipeline_commands(add)
    _add_home_commands(add)
    _add_targets(add)
    _add_bundle_commands(add)
    for add_more in (*kinds("command").values(), *kinds("option").values()):
        add_more(commands)
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
    task = "what the outputs of a model mean; by default inferred from its graph and its outputs"
    run.add_argument("--task", choices=TASKS, help=task)
    parameters = "a JAX function's first argument: an .npz or .msgpack file of arrays"
    run.add_argument("--parameters", metavar="FILE", help=parameters)
    trust = "read a model file that may run code, because you trust its author; needed once for each file"
    run.add_argument("--trust", action="store_true", help=trust)
    validate = add("validate", "validate:validate_config", "check a configuration without running it")
    validate.add_argument("--schema", action="store_true", help="print the JSON Schema of a configuration and exit")
    validate.add_argument("config", nargs="?", help="a YAML file, or the name of a preset")
    for command in (run, validate):
        add_settings(command)


def add_settings(command: argparse.ArgumentParser) -> None:
    """Add the option that changes single values of a configuration."""
    change = "change one value; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=change)


def _add_home_commands(add: AddCommand) -> None:
    show = add("show", "show:show_run", "show the report of a run")
    show.add_argument("run", nargs="?", help="id of the run, or its first characters; the newest by default")
    show.add_argument("--json", action="store_true", help="print report.json")
    add("sync", "sync:sync_runs", "send to MLflow what could not be sent during a run")
    clean = add("clean", "clean:clean_home", "free the disk space of old runs, and of what no kept run refers to")
    clean.add_argument("--keep-runs", type=at_least(0), metavar="N", help="keep the N newest runs; by default all")
    clean.add_argument("--older-than", type=float, metavar="DAYS", help="remove only runs that ended longer ago")
    clean.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def _add_targets(add: AddCommand) -> None:
    text = "list the execution targets that can run here, and why others cannot"
    targets = add("targets", "targets:show_targets", text)
    targets.add_argument("--json", action="store_true", help="print JSON")
    subcommands = targets.add_subparsers(metavar="install NAME")
    install = subcommands.add_parser("install", help="create the Python environment of a target")
    install.set_defaults(command="flows.cli.targets:install_environment")
    install.add_argument("name", metavar="NAME", help="as named by `gauntlet targets`")


def _add_bundle_commands(add: AddCommand) -> None:
    bundle = add("bundle", "bundle:bundle_run", "copy a run's winner, with all that its users need")
    bundle.add_argument("run", nargs="?", help="id of the run, or its first characters; the newest by default")
    bundle.add_argument("--out", metavar="FILE.zip|FOLDER", help="where to; by default NAME.zip in this folder")
    bundle.add_argument("--key", metavar="KEY.pem", help="sign the copy with this elliptic curve key")
    for kind, deliver in kinds("delivery").items():
        first = (deliver.__doc__ or kind).splitlines()[0].rstrip(".")
        text = f"{first[:1].lower()}{first[1:]}, instead of a copy unless --out is given, too"
        bundle.add_argument(f"--{kind}", dest=f"as_{kind}", metavar="FOLDER", help=text)
    codes = f"exit codes: 0 verified, 1 something does not hold, {INVALID}"
    verify = add("verify", "verify:verify_bundle", "prove a bundle again, without a server or a network", codes)
    verify.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    verify.add_argument("--key", metavar="PUB.pem", help="require a signature by this public key")
    verify.add_argument("--json", action="store_true", help="print JSON")
    codes = f"exit codes: 0 predicted, 1 an image cannot be read, {INVALID}, 3 the model cannot run, 130 interrupted"
    predict = add("predict", "predict:predict", "predict images or arrays with a bundle", codes)
    predict.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    inputs = "images, folders of images, - for an image on standard input; or one .npz file with arrays by input"
    predict.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    predict.add_argument("--json", action="store_true", help="print one JSON object a line for each input")
    drawn = "write the images with their predictions drawn"
    predict.add_argument("--draw", metavar="FOLDER", help=drawn)
    predict.add_argument("--out", metavar="FILE.npz", help="write the model's outputs for an .npz file")
    predict.add_argument("--threads", type=at_least(1), metavar="N", help="by default as in the race")
    for add_input in kinds("input").values():
        add_input(predict)
