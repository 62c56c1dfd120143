"""`gauntlet validate`: what a run would try is printed, or the JSON Schema, without running the pipeline."""

import argparse
import json

from rich.console import Console

from configs.brought_model import is_model
from configs.loader import load, presets
from configs.required_packages import require_packages
from configs.schema import PipelineConfig
from flows.cli.run import infer, print_inferred, refuse_model_options, time_of_last
from flows.record.home import Home
from gauntlet.core.errors import ConfigError


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


def _validate(options: argparse.Namespace) -> None:
    if is_model(options.config):
        inferred, config = infer(options, Home.find())
        print_inferred(Console(), options.config, inferred, config)
    else:
        refuse_model_options(options)
        config = load(options.config, tuple(options.set))
    tried = f"{len(config.candidates)} candidates: {', '.join(config.candidates)}"
    print("; ".join(filter(None, (f"{options.config}: valid", tried, time_of_last(config.name)))))  # noqa: T201
    try:
        require_packages(config)
    except ConfigError as error:
        print(f"but it cannot run here: {error}")  # noqa: T201
