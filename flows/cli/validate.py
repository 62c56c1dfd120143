"""`gauntlet validate`: what a run would try is printed, or the JSON Schema, without running the pipeline."""

import argparse
import json
from contextlib import suppress

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
            _validate(argparse.Namespace(**vars(options) | {"config": source}))
        except ConfigError as error:
            invalid.append(str(error))
    if invalid:
        raise ConfigError("\n".join(invalid))
    return 0


def _time_of_last(name: str) -> str:
    """Return how long the newest run of this name that passed has taken; empty where there is none."""
    for folder in Home.find().finished_runs():
        if f"-{name}-" in folder.name:
            with suppress(ValidationError):  # of another release
                report = read_report((folder / "report.json").read_bytes())
                if (report.name, report.verdict) == (name, "passed"):
                    return f"; its last run took {duration(report.seconds)}"
    return ""


def _validate(options: argparse.Namespace) -> None:
    if is_model(options.config):
        inferred, config = infer(options, Home.find())
        print_inferred(Console(), options.config, inferred, config)
    else:
        refuse_model_options(options)
        config = load(options.config, tuple(options.set))
    tried = f"{len(config.candidates)} candidates: {', '.join(config.candidates)}"
    print(f"{options.config}: valid; {tried}{_time_of_last(config.name)}")  # noqa: T201
    try:
        require_packages(config)
    except ConfigError as error:
        print(f"but it cannot run here: {error}")  # noqa: T201
