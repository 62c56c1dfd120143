"""`gauntlet validate`: a configuration is checked, or its JSON Schema printed, without running anything."""

import argparse
import json

from configs.loader import load, presets
from configs.required_packages import require_packages
from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError


def validate_config(options: argparse.Namespace) -> int:
    """List the candidates of a configuration, or print the schema; raise `ConfigError` when it is invalid."""
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
