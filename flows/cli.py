"""The command line. Whatever it needs is imported where it is needed: `gauntlet --help` answers at once."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.bench_options import add_bench_and_targets

if TYPE_CHECKING:
    from rich.console import Console

    from flows.home import Home

EXIT_CODES = "exit codes: 0 passed, 1 a gate said no, 2 the question was wrong, 3 a stage broke, 130 interrupted, "
EXIT_CODES += "143 terminated"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = parser().parse_args(arguments)
    from tasks.errors import PipelineError

    verb: Callable[[argparse.Namespace], int] = options.verb
    try:
        return verb(options)
    except PipelineError as error:
        print(f"gauntlet: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("gauntlet: interrupted; the same command goes on where it stopped", file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="gauntlet",
        description="Run a model through the gauntlet: train, export, prove, shrink, race, and keep the survivor.",
        epilog=EXIT_CODES,
    )
    verbs = top.add_subparsers(required=True, metavar="COMMAND")

    run = verbs.add_parser("run", help="run the pipeline", epilog=EXIT_CODES)
    run.set_defaults(verb=run_pipeline)
    run.add_argument("--fresh", action="store_true", help="repeat everything; use nothing of earlier runs")
    validate = verbs.add_parser("validate", help="check a configuration without running it")
    validate.set_defaults(verb=validate_config)
    validate.add_argument("--schema", action="store_true", help="print the JSON Schema of a configuration and stop")
    for command in (run, validate):
        optional = "?" if command is validate else None
        command.add_argument("config", nargs=optional, help="a YAML file, or the name of a preset")
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="change one value; may be repeated"
        )

    show = verbs.add_parser("show", help="show a run's report")
    show.set_defaults(verb=show_run)
    show.add_argument("run", nargs="?", help="id of the run, or its beginning; the newest by default")
    show.add_argument("--json", action="store_true", help="print report.json")

    ui = verbs.add_parser("ui", help="serve the Prefect and MLflow pages on this machine until Ctrl-C")
    ui.set_defaults(verb=serve_ui)
    ui.add_argument("--prefect-port", type=int, default=4200)
    ui.add_argument("--mlflow-port", type=int, default=5000)

    sync = verbs.add_parser("sync", help="send to MLflow what could not be sent during a run")
    sync.set_defaults(verb=sync_runs)

    codes = "exit codes: 0 no error found, 1 an error found, 2 the question was wrong, 3 the file cannot be read"
    diagnose = verbs.add_parser("diagnose", help="find a model's classic faults, and fix them", epilog=codes)
    diagnose.set_defaults(verb=diagnose_model)
    diagnose.add_argument("model", metavar="MODEL", help="an .onnx file; nothing of it runs in this process")
    diagnose.add_argument("--data", metavar="FILE.npz", help="samples by input name, and right outputs by theirs")
    diagnose.add_argument("--layout", choices=["NCHW", "NHWC"], help="how the caller's pictures lie in memory")
    diagnose.add_argument("--constants", metavar="FILE.npz", help="values of leaked constants, by input name")
    diagnose.add_argument("--fix", metavar="OUT.onnx", help="write a copy with what can be fixed safely fixed")
    diagnose.add_argument("--timeout", type=float, metavar="SECONDS", help="limit; by default 7, more for large files")
    diagnose.add_argument("--json", action="store_true", help="print JSON")

    inspect = verbs.add_parser("inspect", help="show what a model holds: shapes, parameters, MACs, layers, graph")
    inspect.set_defaults(verb=inspect_model)
    inspect.add_argument("model", metavar="MODEL", help="an .onnx file; its external data is not read")
    views = inspect.add_mutually_exclusive_group()
    views.add_argument("--graph", action="store_true", help="print every node with its shapes")
    views.add_argument("--json", action="store_true", help="print JSON")
    views.add_argument("--netron", action="store_true", help="open it in the browser, served on this machine only")
    inspect.add_argument("--port", type=int, help="for --netron; by default a free one")
    add_bench_and_targets(verbs)
    return top


def run_pipeline(options: argparse.Namespace) -> int:
    """Run the pipeline in this process, with a Prefect server of its own where there is none."""
    from rich.console import Console

    from configs.load import load
    from configs.packages import require_packages
    from flows.console import live, print_report
    from flows.home import Home
    from flows.local import run_local
    from tasks.run_report import RunReport

    config = load(options.config, tuple(options.set))
    require_packages(config)
    signal.signal(signal.SIGTERM, _terminated)
    console, home = Console(), Home.find()
    with live(console):
        folder, code = run_local(config, home, fresh=options.fresh)
    print_report(console, RunReport.model_validate_json((folder / "report.json").read_bytes()))
    _say_where(console, home, folder)
    return code


def _terminated(*_: object) -> None:
    """End as after Ctrl-C: the record is closed and no server of ours stays behind."""
    raise SystemExit(128 + signal.SIGTERM)


def _say_where(console: "Console", home: "Home", folder: Path) -> None:
    from flows.tracking import Sender

    console.print(f"Report: {_short(folder / 'report.html')}", highlight=False, soft_wrap=True)
    console.print("Look closer: gauntlet show, gauntlet ui", highlight=False)
    if not Sender(home, folder).everything_sent():
        console.print("MLflow did not get all of it; send the rest with: gauntlet sync", style="yellow")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def validate_config(options: argparse.Namespace) -> int:
    """Load a configuration and say so, or print the schema."""
    import json

    from configs.load import load, presets
    from configs.packages import require_packages
    from configs.schema import PipelineConfig
    from tasks.errors import ConfigError

    if options.schema:
        print(json.dumps(PipelineConfig.model_json_schema(), indent=2))  # noqa: T201
        return 0
    if options.config is None:
        raise ConfigError(f"validate needs a YAML file or a preset ({', '.join(presets())}), or --schema")
    config = load(options.config, tuple(options.set))
    print(f"{options.config}: valid; {len(config.candidates)} candidates: {', '.join(config.candidates)}")  # noqa: T201
    try:
        require_packages(config)
    except ConfigError as error:
        print(f"but it cannot run here: {error}")  # noqa: T201
    return 0


def show_run(options: argparse.Namespace) -> int:
    """Print a finished run's report."""
    from rich.console import Console

    from flows.console import print_report
    from flows.home import Home
    from tasks.errors import ConfigError
    from tasks.run_report import RunReport

    home = Home.find()
    folder = home.finished_run(options.run)
    if folder is None:
        which = f"a run '{options.run}'" if options.run else "a finished run"
        raise ConfigError(f"{home.runs}: there is no report of {which}; start one with: gauntlet run digits-resnet18")
    text = (folder / "report.json").read_text(encoding="utf-8")
    if options.json:
        print(text)  # noqa: T201
        return 0
    console = Console()
    print_report(console, RunReport.model_validate_json(text))
    console.print(f"Report: {_short(folder / 'report.html')}", highlight=False, soft_wrap=True)
    return 0


def serve_ui(options: argparse.Namespace) -> int:
    """Serve both pages until interrupted."""
    from flows.home import Home
    from flows.ui import serve

    serve(Home.find(), options.prefect_port, options.mlflow_port)
    return 0


def sync_runs(_options: argparse.Namespace) -> int:
    """Send what is missing of every run."""
    from flows.home import Home
    from flows.run import close_interrupted
    from flows.tracking import Sender
    from tasks.errors import StageError

    home = Home.find()
    close_interrupted(home)
    senders = [Sender(home, folder) for folder in home.run_folders()]
    waiting = [sender for sender in senders if not sender.everything_sent()]
    unsent = [sender.folder.name for sender in waiting if not sender.send()]
    print(f"{len(waiting) - len(unsent)} of {len(waiting)} runs sent")  # noqa: T201
    if unsent:
        raise StageError(f"not sent: {', '.join(unsent)}; the server does not answer, or refuses the record")
    return 0


def diagnose_model(options: argparse.Namespace) -> int:
    """Find faults, and mend them where that is asked for."""
    from flows.diagnosis import diagnose_model

    return diagnose_model(options)


def inspect_model(options: argparse.Namespace) -> int:
    """Show what a model file holds."""
    from flows.inspection import inspect_model

    return inspect_model(options)


if __name__ == "__main__":
    sys.exit(main())
