"""Run the product as its user does, read the report that it leaves, and take the winner."""

import argparse
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from peer_files import Row
from results import script_parser

from configs.schema import PipelineConfig
from flows.cli.main import main
from flows.record.home import Home
from flows.record.report_files import read_report
from gauntlet.core.errors import StageError
from gauntlet.core.run_report import RunReport
from gauntlet.targets import environments

SHARED = ("benchmark.threads=1", "benchmark.restart_processes=false", "quantize_budget_s=600")
"""Settings for a machine with other work: threads of one call would wait for each other, new processes to start, and
the search takes many times as long."""
CHANGES = ("benchmark.batch_sizes=[1]", "benchmark.profile=false")


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


def timed(command: list[str], log: Path, **variables: str) -> tuple[float, float]:
    """Run a command; return its processor seconds, and the peak memory of its largest process in MB.

    Raises:
        StageError: when it fails; its last line says why.
    """
    with log.open("w") as text:
        process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, env={**os.environ, **variables})
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise StageError(next(iter(reversed(log.read_text().strip().splitlines())), f"exit status {status}"))
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def run_on_samples(model: Path, home: Home, changes: list[str]) -> tuple[RunReport, tuple[float, float]]:
    """Let the product work on a model and the `samples` beside it; return the report, processor seconds and MB."""
    before, changed = set(home.run_folders()), settings(*CHANGES, *changes)
    command = [sys.executable, "-m", "flows.cli.main", "run", str(model), "--data", str(model.parent / "samples")]
    cost = timed([*command, *changed], model.parent / "run.log", GAUNTLET_HOME=str(home.root))
    [run] = set(home.run_folders()) - before
    return read_report(run / "report.json"), cost


def arguments(
    description: str | None, names: Iterable[str], folder: Path, rounds: int
) -> tuple[argparse.Namespace, Home]:
    """Return the options of a script that races networks by name, and its home, with OpenVINO installed."""
    parser = script_parser(description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(names)}")
    parser.add_argument("--folder", type=Path, default=folder, help="for networks, runs and outcomes")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for `gauntlet run`")
    options = parser.parse_args()
    home = Home((options.folder / "home").resolve())
    os.environ["GAUNTLET_HOME"] = str(home.root)
    environments.make(environments.folder("openvino"), environments.known()["openvino"], print)
    return options, home
