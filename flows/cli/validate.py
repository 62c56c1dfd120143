"""`gauntlet validate`: what a run would try is printed, or the JSON Schema, without running the pipeline."""

import argparse
import json
import tempfile
from pathlib import Path
from textwrap import fill

from configs.brought_model import is_model
from configs.loader import load, presets
from configs.required_packages import require_packages
from configs.schema import PipelineConfig
from flows.cli.run import infer, print_inferred, refuse_model_options, time_of_last
from flows.cli.shared import Output
from flows.record.home import Home
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.user_code import UserCode


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


def print_plan(options: argparse.Namespace) -> None:
    """Print what a run would try, on what, and how long the last one took; nothing is written into the home.

    Raises:
        ConfigError: when the configuration is invalid, or none can be inferred.
    """
    if not is_model(options.config):
        refuse_model_options(options)
        _print_plan(options, load(options.config, tuple(options.set)))
        return
    trusted = {"trust": options.trust or Home.find().store.holds(Path(options.config))}
    with tempfile.TemporaryDirectory() as folder:  # samples of other kinds become files
        inferred, config = infer(argparse.Namespace(**vars(options) | trusted), Home(Path(folder)))
        print_inferred(Output(), options.config, inferred, config)
        _print_plan(options, config)


def _print_plan(options: argparse.Namespace, config: PipelineConfig) -> None:
    tried = f"{len(config.candidates)} candidates: {', '.join(config.candidates)}"
    targets = ", ".join(target.name for target in config.benchmark.targets)
    raced = f"raced on {targets} at batch {', '.join(map(str, config.benchmark.batch_sizes))}"
    last = time_of_last(config.name) or "how long it takes is not known before a run of it has passed"
    lines = [f"{options.config}: valid; {tried}; {raced}; {last}"]
    try:
        require_packages(config)
        train = dict(config.train)
        for key in train.keys() & {"factory", "function"} if "code_folder" in train else ():
            UserCode.read(train["code_folder"], train[key]).function()
    except StageError as error:
        raise ConfigError(f"{options.config}: train: {error}") from error
    except ConfigError as error:
        lines.append(f"but it cannot run here: {error}")
    keys = ((part, *of_part) for part in ("data", "train") for of_part in getattr(config, part))
    absent = [f"{part}.{key}: {path}" for part, key, path in keys if isinstance(path, Path) and not path.exists()]
    lines += [f"but it cannot run here: {file} does not exist" for file in absent]
    for line in lines:
        print(fill(line, Output().width, break_long_words=False, break_on_hyphens=False))  # noqa: T201
