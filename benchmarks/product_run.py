"""Run the product as its user does, read the report that it leaves, and take the winner."""

import logging
import os
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from peer_files import Row

from configs.schema import PipelineConfig
from flows.cli.main import main
from flows.record.home import Home
from gauntlet.core.errors import StageError
from gauntlet.core.run_report import RunReport

SHARED = ("benchmark.threads=1", "benchmark.restart_processes=false", "quantize_budget_s=600")
"""Settings for a machine with other work: threads of one call would wait for each other, new processes to start, and
the search takes many times as long."""


def run_product(home: Home, log: Path, *words: str) -> RunReport:
    """Call `gauntlet run` with these words, in this process, and return the report.

    Starting a process takes longer than many of these runs. What a user would read goes to `log`; so does a traceback,
    and the exception is raised.

    Raises:
        StageError: when the run leaves no report.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # else a quantizer's first warning makes all logs appear
    os.environ["GAUNTLET_HOME"] = str(home.root)
    before = set(home.run_folders())
    with log.open("w") as text, redirect_stdout(text), redirect_stderr(text):
        try:
            main(["run", *words])
        except Exception:
            traceback.print_exc()
            raise
    reports = [f / "report.json" for f in home.run_folders() if f not in before and (f / "report.json").exists()]
    if not reports:
        raise StageError(f"it left no report; see {log}")
    return RunReport.model_validate_json(reports[-1].read_bytes())


def winner_of(report: RunReport, home: Home) -> Row:
    """Return the winner's file, and the target that it won on.

    Raises:
        StageError: when the run failed.
    """
    entry = next((c for c in report.candidates if c.name == report.winner), None)
    if entry is None or entry.artifact is None or entry.target is None:
        raise StageError(f"{report.name} has no winner: {report.reason}")
    race = PipelineConfig.model_validate(report.config).benchmark
    return Row(file=home.store.path(entry.artifact), target=race.target_named(entry.target))


def settings(*values: str) -> list[str]:
    """Return the words of `gauntlet run` that change keys of the configuration."""
    return [word for value in values for word in ("--set", value)]
