"""The seam with stages of three lines: in this process, or as a run in a process of its own, which waits."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_stages import Nothing, begin, make, race
from harness import until
from prefect import flow

from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.record.run import Run
from flows.recording import recording
from flows.stage import Line
from gauntlet.core.candidate import Candidate
from gauntlet.core.report import Report
from gauntlet.runtime.signals import end_in_order

Seam = Callable[..., Run]


def candidates(line: Line, config: PipelineConfig, *more: tuple[str, Callable[..., Report[Nothing]], float]) -> None:
    """Make some candidates, each of its own number, side by side as configured."""
    source = line.stage(begin, "text").artifacts["model"]

    def attempt(name: str, function: Callable[..., Report[Nothing]], number: float, fork: Line) -> None:
        with fork.attempt(Candidate(name, "fp32", "fp32")) as branch:
            branch.make(function, number, source=source)

    with line.side_by_side(config.runner) as lines:
        for name, function, number in (*more, ("worse", make, -1.0), ("good", make, 2.0), ("better", make, 3.0)):
            lines.fork(partial(attempt, name, function, number))
    line.stage(race, "race", source=source)


@flow(name="gauntlet", persist_result=False)
def fake_run(config: PipelineConfig) -> None:
    """Run all of them with a record, as the pipeline does."""
    with recording(config) as run:
        candidates(Line(run), config)


@pytest.fixture
def seam(prefect_server: str, tmp_path: Path) -> Seam:
    """Calls a function with the main line of a new run of one home, in a flow; returns the run."""
    runs: list[Run] = []

    def call(body: Callable[[Line], Any], config: PipelineConfig | None = None, *, fresh: bool = False) -> Run:
        run = Run(f"run-{len(runs)}", Home(tmp_path / "home", ""), config or PipelineConfig(), fresh=fresh)
        run.folder.mkdir(parents=True, exist_ok=True)
        run.open()
        runs.append(run)
        flow(lambda: body(Line(run)), name="seam", persist_result=False)()
        return run

    return call


def require_same_record(seam: Seam, config: PipelineConfig) -> None:
    """Make the candidates with workers and without: the record is in the order of the code, and one gate stops one."""
    runs = [seam(lambda line: candidates(line, line.run.config), one, fresh=True) for one in (PipelineConfig(), config)]
    made = [("begin", None), ("make", "worse"), ("make", "good"), ("make", "better"), ("race", None)]
    assert [[(entry.stage, entry.candidate) for entry in run.stages] for run in runs] == [made, made]
    [reasons, same] = [{name: candidate.reason for name, candidate in run.candidates.items()} for run in runs]
    assert reasons == same
    assert [name for name, reason in reasons.items() if "make.min" in reason] == ["worse"]


def waiting_run(folder: Path, stage_name: str, **config: Any) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a run in a process of its own; return it, and the process in which its stage waits."""
    file = folder / "waiting"
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "GAUNTLET_HOME": str(folder), "WAITING": f"{stage_name}={file}"}
    process = subprocess.Popen(
        [sys.executable, "-c", "import fake_runs; fake_runs.main()", json.dumps(config)],
        env=os.environ | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: process.poll() is not None or (file.exists() and file.read_text().endswith(" ")), 300)
    assert process.poll() is None
    return process, int(file.read_text())


def main() -> None:
    """Run as the command line does: SIGTERM ends the run, and its record is closed."""
    end_in_order()
    fake_run(PipelineConfig.model_validate(json.loads(sys.argv[1])))
