"""`gauntlet run`: the pipeline in this process, with a Prefect server of its own where there is none."""

import argparse
from contextlib import nullcontext, suppress
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from configs.brought_model import InferredConfig, infer_config, is_model
from configs.loader import given_libraries, load, validated, written
from configs.required_packages import require_packages
from configs.schema import PipelineConfig
from flows.cli.argument_types import by_occurrence
from flows.cli.console import live, print_report
from flows.cli.shared import Output
from flows.local_run import run_local
from flows.record.home import Home
from flows.record.journal import everything_sent
from flows.record.report_files import read_report
from gauntlet.core.errors import ConfigError, PipelineError, is_checkout
from gauntlet.core.kinds import kinds
from gauntlet.core.run_report import RunReport
from gauntlet.onnx_model.model_file import copy_model
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import duration, printable
from gauntlet.runtime.operator_libraries import with_operator_libraries
from gauntlet.runtime.processor import Processor
from tasks.quantize.auto import recipes_for

MODEL_OPTIONS = {
    "data": "the key under data",
    "labels": "the key under data",
    "shape": "the key under data",
    "task": "data.task",
    "group": "data.group, or the array split_groups",
    "time": "the array split_times",
    "threshold": "data.threshold",
    "parameters": "train.parameters",
    "trust": "train.trust",
}
"""Options that are for models alone -> what a configuration has for it."""
CONFIG_FILE = "config.yaml"
"""In a brought model's run folder: what was inferred, with the settings of the command."""


def run_pipeline(options: argparse.Namespace) -> int:
    """Run the pipeline and print its report; the exit code is the verdict."""
    console, home = Output(), Home.find()
    out = new_model_file(options.out)
    if options.dry_run:
        from flows.cli.validate import print_plan  # which uses what is here

        print_plan(options)
        return 0
    stores_samples = options.data and is_model(options.config)
    with home.kept() if stores_samples else nullcontext():
        return print_run(options, home, console, out)


def print_run(options: argparse.Namespace, home: Home, console: Console, out: Path | None) -> int:
    """Run, print what happens, and return the exit code; the winner is written to `out`."""
    config, inferred = configured(options, home, console)
    limit = f"about {options.minutes} min, as far as the gates allow" if options.minutes else ""
    if time := "; ".join(filter(None, (limit, time_of_last(config.name)))):
        console.print(f"Time: {time}", highlight=False)
    folder, error = completed_run(config, inferred, home, console, options)
    report = read_report(folder / "report.json")
    print_report(console, report, home)
    if out is not None:
        write_winner(console, report, home, out)
    if inferred is not None:
        path = folder / CONFIG_FILE
        relative = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        console.print(f"Configuration: {relative}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"More: gauntlet show, gauntlet {'up' if is_checkout() else 'runs'}", highlight=False)
    if not everything_sent(folder):
        console.print("MLflow did not receive everything; send the rest with: gauntlet sync", style="yellow")
    return error.exit_code if error is not None else 0


def configured(
    options: argparse.Namespace, home: Home, console: Console
) -> tuple[PipelineConfig, InferredConfig | None]:
    """Return the configuration that the options name, or that of a model, and then what was inferred of it.

    Raises:
        ConfigError: when it is invalid, or needs a package that is not installed.
    """
    if not is_model(options.config):
        refuse_model_options(options)
        config = load(options.config, tuple(options.set))
        require_packages(config)
        return config, None
    inferred, config = infer(options, home)
    require_packages(config)
    print_inferred(console, options.config, inferred, config)
    return config, inferred


def completed_run(
    config: PipelineConfig, inferred: InferredConfig | None, home: Home, console: Console, options: argparse.Namespace
) -> tuple[Path, PipelineError | None]:
    """Run, and show the progress; return the run's folder, with the configuration of a model, and what failed it."""
    with live(console):
        folder, error = run_local(config, home, fresh=options.fresh, minutes=options.minutes)
    if inferred is not None:
        (folder / CONFIG_FILE).write_text(written(inferred.values), encoding="utf-8")
    return folder, error


def infer(options: argparse.Namespace, home: Home) -> tuple[InferredConfig, PipelineConfig]:
    """Return what was inferred for a model, and its configuration with the settings of the command."""
    samples, notes = options.data, dict[str, str]()
    if samples:
        home.create()  # samples of other kinds are stored
    for as_file in kinds("samples").values():
        by = {"group": options.group, "time": options.time}
        samples = as_file(samples, options.config, home.store, trust=options.trust, notes=notes, **by)
    files = (samples, options.labels, options.parameters)
    data, labels, parameters = (Path(name) if name else None for name in files)
    shapes, *further = by_occurrence(options.shape)
    with with_operator_libraries(given_libraries(options.config, options.set)):
        inferred = infer_config(
            Path(options.config),
            data,
            labels,
            shapes,
            parameters,
            task=options.task,
            trust=options.trust,
            store=home.store,
            group=options.group,
            threshold=options.threshold,
            further=further,
        )
    if samples != options.data:  # the user knows his own file, not the store's
        inferred.notes["samples"] = inferred.notes["samples"].replace(str(samples), options.data)
    inferred.notes.update(notes)
    return inferred, validated(Path(options.config), inferred.values, tuple(options.set))


def refuse_model_options(options: argparse.Namespace) -> None:
    """Refuse what is for models alone; a configuration has keys for it."""
    for name, key in MODEL_OPTIONS.items():
        if getattr(options, name):
            raise ConfigError(f"--{name} is for a model; {options.config} is a configuration: set {key}")


def print_inferred(console: Console, model: str, inferred: InferredConfig, config: PipelineConfig) -> None:
    """Print what was found and assumed, before the run starts."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    auto = config.quantize == recipes_for(Processor.current(), vars(config))
    how = "quantize: auto, {} for this processor" if auto else "{} as set"
    rows = inferred.notes | {
        "recipes": f"{how.format(len(config.quantize))}; {len(config.optimize)} graph passes",
        "deployed on": ", ".join((config.benchmark.targets[0].name, *config.benchmark.deploy_targets)),
    }
    for subject, text in rows.items():
        assumed = "ASSUMED" in text or "random" in text
        table.add_row(Text(printable(subject)), Text(printable(text), style="yellow" if assumed else ""))
    console.print(Text(f"{config.name}: inferred from {printable(model)}", style="bold"), highlight=False)
    console.print(Padding(table, (0, 0, 1, 2)), highlight=False)


def time_of_last(name: str) -> str:
    """Return how long the newest run of this name that passed has taken; empty where there is none."""
    for folder in Home.find().finished_runs():
        if f"-{name}-" in folder.name:
            with suppress(ConfigError):  # of another release
                report = read_report(folder / "report.json")
                if (report.name, report.verdict) == (name, "passed"):
                    return f"its last run took {duration(report.seconds)}"
    return ""


def new_model_file(name: str | None) -> Path | None:
    """Return the path that `--out` names, before anything runs; None without it.

    Raises:
        ConfigError: when it is no .onnx file, exists, or its folder does not.
    """
    if name is None:
        return None
    path = Path(name)
    if path.suffix != ".onnx":
        fix = "Fix: a bundle is written by gauntlet bundle"
        raise ConfigError(f"--out {name}: expected a file that ends in .onnx. {fix}")
    if path.exists():
        raise ConfigError(f"--out {name}: it exists. Fix: remove it, or choose another file")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {name}: no folder {path.parent}")
    return path


def write_winner(console: Console, report: RunReport, home: Home, target: Path) -> None:
    """Copy the winner's file, with its weights beside it if it has some; say so where there is no winner."""
    model = timeline.model_file(report, home.store.root)
    if model is None:
        text = f"--out {target}: not written, because the run has no winner"
    else:
        copy_model(model, target)
        text = f"Written: {target}, which is {report.winner}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
