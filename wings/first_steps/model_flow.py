"""A run of a model file or a preset, started from Prefect's page with five fields."""

import argparse

from prefect import flow
from rich.console import Console

from flows.cli.options import parser
from flows.cli.run import configured
from flows.failure import fails_with_its_reason
from flows.pipeline import pipeline
from flows.record.home import Home


@flow(name="gauntlet-run", flow_run_name="{model}", persist_result=False, log_prints=False)
@fails_with_its_reason
def run_model_or_preset(
    model: str, data: str = "", labels: str = "", settings: tuple[str, ...] = (), *, fresh: bool = False
) -> str:
    """Run a model file, with what can be inferred of it, or a preset; return the run's id.

    Args:
        model: path of a model file or of a configuration where the worker runs, or a preset's name.
        data: samples for a model file: path of a folder of images, an array or a table; random ones by default.
        labels: path of a file with the names of a model's classes.
        settings: `key.path=value`, as in a configuration.
        fresh: repeat everything; use no results of earlier runs.

    Raises:
        ConfigError: when there is no such file or preset, or a setting is wrong.
        GateFailed: when a gate fails.
    """
    chosen = {"config": model, "data": data or None, "labels": labels or None, "set": [*settings]}
    options = argparse.Namespace(**vars(parser().parse_args(["run", "preset"])) | chosen)
    config, _ = configured(options, Home.find(), Console(quiet=True))
    return pipeline.fn(config, fresh=fresh)
