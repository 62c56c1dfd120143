"""`gauntlet validate`: what a run would try is printed, or the JSON Schema, without running the pipeline."""

import argparse
import json
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from configs.brought_model import is_model
from configs.loader import load, presets
from configs.required_packages import require_packages
from configs.schema import PipelineConfig
from flows.cli.run import infer, print_inferred, refuse_model_options
from flows.record.home import Home
from flows.record.report_files import read_report
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import duration


def validate_config(options: argparse.Namespace) -> int:
    """List the candidates of configurations, or of what models' would be, or print the schema.

    Raises:
        ConfigError: when a configuration is invalid, or none can be inferred, with a message for each.
    """
    if options.schema:
        print(json.dumps(PipelineConfig.model_json_schema(), indent=2))  # noqa: T201
        return 0
    if not options.config:
        raise ConfigError(f"validate needs a model, a YAML file or a preset ({', '.join(presets())}), or --schema")
    invalid = []
    for source in options.config:
        try:
            print_plan(argparse.Namespace(**vars(options) | {"config": source}))
        except ConfigError as error:
            invalid.append(str(error))
    if invalid:
        raise ConfigError("\n".join(invalid))
    return 0


def _time_of_last(name: str) -> str:
    """Return how long the newest run of this name that passed has taken, or that there is none."""
    for folder in Home.find().finished_runs():
        if f"-{name}-" in folder.name:
            with suppress(ValidationError):  # of another release
                report = read_report((folder / "report.json").read_bytes())
                if (report.name, report.verdict) == (name, "passed"):
                    return f"its last run took {duration(report.seconds)}"
    return "how long it takes is not known before a run of it has passed"


def print_plan(options: argparse.Namespace) -> None:
    """Print what a run would try, on what, and how long the last one took; nothing is written into the home.

    Raises:
        ConfigError: when the configuration is invalid, or none can be inferred.
    """
    if is_model(options.config):
        with tempfile.TemporaryDirectory() as folder:  # samples of other kinds become files
            inferred, config = infer(options, Home(Path(folder)))
        print_inferred(Console(), options.config, inferred, config)
    else:
        refuse_model_options(options)
        config = load(options.config, tuple(options.set))
    tried = f"{len(config.candidates)} candidates: {', '.join(config.candidates)}"
    targets = ", ".join(target.name for target in config.benchmark.targets)
    raced = f"raced on {targets} at batch {', '.join(map(str, config.benchmark.batch_sizes))}"
    print(f"{options.config}: valid; {tried}; {raced}; {_time_of_last(config.name)}")  # noqa: T201
    try:
        require_packages(config)
    except ConfigError as error:
        print(f"but it cannot run here: {error}")  # noqa: T201
