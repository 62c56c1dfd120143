"""Many models: each runs the pipeline as a sub-flow in a process of its own; what is finished is not repeated."""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Literal

from prefect import flow
from prefect.flow_engine import run_flow_in_subprocess
from pydantic import Field

from flows.failure import fails_with_its_reason
from flows.local_run import find_own_run
from flows.pipeline import pipeline
from flows.record.home import Home
from flows.record.report_files import read_report
from flows.tracking.server import prepare_local_store
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError, GateFailed, PipelineError, listed
from gauntlet.core.run_report import RunReport
from gauntlet.core.workspace import steps_log
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import ratio
from gauntlet.runtime.resources import end_with_parent
from wings.fleet.fleet_record import fleet_record
from wings.fleet.library.fleet_models import FleetModel, find_models
from wings.fleet.library.fleet_report import FleetReport, FleetResult

log = logging.getLogger("gauntlet")

STOP_S = 30
"""A process that was asked to end closes the record of its run meanwhile."""
MAX_NAMED = 5
FINAL = ("passed", "failed")
"""Verdicts on a model; what else ended its run, such as short memory or a missing file, may have been mended."""
NOT_UTF8 = "its path is not UTF-8. Fix: rename it"


class NotAllPassed(GateFailed):
    """Not every model of a fleet passed."""

    def __init__(self, report: FleetReport) -> None:
        names = [result.model for result in report.others]
        super().__init__(f"{len(names)} of {len(report.results)} models did not pass: {listed(names, MAX_NAMED)}")
        self.fleet_id = report.fleet_id


@flow(name="gauntlet-fleet", flow_run_name="{folder}", persist_result=False, log_prints=False)
@fails_with_its_reason
def fleet(
    folder: Path, settings: tuple[str, ...] = (), workers: Annotated[int, Field(ge=1)] = 1, *, fresh: bool = False
) -> str:
    """Run every model of a folder through the pipeline; return the fleet's id.

    A fleet with the same folder and settings that was interrupted is continued.

    Args:
        folder: model files, and configurations of runs.
        settings: `key.path=value`, for every model.
        workers: number of models at the same time, at least 1. Races still have the host to themselves.
        fresh: begin anew, and repeat everything; use no results of earlier runs.

    Raises:
        ConfigError: when there is no model in the folder.
        NotAllPassed: when not every model passed.
    """
    log.setLevel(logging.INFO)
    home, began = Home.find(), time.monotonic()
    models = {model.digest(settings): model for model in find_models(folder)}
    home.create()
    with fleet_record(home, folder, settings, fresh=fresh) as record:
        known = record.results().items()
        results = {digest: result for digest, result in known if digest in models and result.verdict in FINAL}
        if results:
            log.info("%s: goes on; %d of %d models are done", record.folder.name, len(results), len(models))
        waiting = {digest: model for digest, model in models.items() if digest not in results}

        def start(digest: str) -> BaseProcess:
            record.file(digest, ".json").unlink(missing_ok=True)
            parameters = {"model": waiting[digest], "settings": settings, "fresh": fresh}
            files = {"outcome": record.file(digest, ".json"), "output": record.file(digest, ".log")}
            steps_log.info("", extra={"work": digest, "began": waiting[digest].name})
            return run_flow_in_subprocess(run_model, parameters=parameters | files)

        def finish(digest: str, process: BaseProcess) -> None:
            result = record.outcome(digest) or _lost(waiting[digest], process, record.file(digest, ".log"))
            steps_log.info("", extra={"work": digest, "ended": result.model})
            add(digest, result)

        def add(digest: str, result: FleetResult) -> None:
            record.finished(digest, result)
            results[digest] = result
            log.info("%s: %s (%d of %d)", result.model, _told(result), len(results), len(models))

        for digest in [digest for digest, model in waiting.items() if not model.has_valid_path]:
            add(digest, FleetResult(model=waiting.pop(digest).name, verdict="invalid", reason=NOT_UTF8))
        run_processes(list(waiting), start, finish, workers)
        report = record.close(tuple(results[digest] for digest in models), time.monotonic() - began)
    if report.others:
        raise NotAllPassed(report)
    return report.fleet_id


@flow(name="gauntlet-model", flow_run_name="{model.name}", persist_result=False, log_prints=False)
def run_model(model: FleetModel, settings: tuple[str, ...], outcome: Path, output: Path, *, fresh: bool) -> None:
    """Run one model in this process, and write what came of it; a broken one fails this flow alone."""
    end_with_parent()
    _print_into(output)
    began, home, error = time.monotonic(), Home.find(), None
    before = set(home.run_folders())
    try:
        config = model.configure(settings)
        prepare_local_store(home, config)
        pipeline(config, fresh=fresh)
    except PipelineError as raised:
        error = raised
    folder = find_own_run(home, before)
    if folder is None:
        verdict: Literal["invalid", "broke"] = "invalid" if isinstance(error, ConfigError) else "broke"
        result = FleetResult(model=model.name, verdict=verdict, reason=str(error))
    else:
        result = result_of(model.name, read_report(folder / "report.json"), error)
    write_atomically(outcome, result.replace(seconds=time.monotonic() - began).model_dump_json(indent=1))
    if error is not None:
        raise error


def result_of(model: str, report: RunReport, error: PipelineError | None) -> FleetResult:
    """Return a model's result from the report of its run, and from what ended it early."""
    failed = "failed" if isinstance(error, GateFailed) else "broke"
    result = FleetResult(model=model, verdict=failed if error else "passed", run_id=report.run_id)
    if error:
        return result.replace(stopped_at=report.stopped_at or "", reason=report.reason)
    winner, original = timeline.winner(report), timeline.reference(report)
    if winner is None or original is None:
        return result
    result = result.replace(winner=winner.name, metric=report.metric, quality=winner.accuracy)
    result = result.replace(size_bytes=winner.size_bytes, original_size_bytes=original.size_bytes)
    row = timeline.deciding_row(report, winner.benchmark)
    if row is None or row.verdict == "reference":
        return result
    return result.replace(speedup=row.speedup, speedup_low=row.speedup_low, speedup_high=row.speedup_high)


def run_processes(
    waiting: list[str], start: Callable[[str], BaseProcess], finish: Callable[[str, BaseProcess], None], workers: int
) -> None:
    """Start a process for each name, so many at a time; when this one is interrupted, none is left behind."""
    queue, running = deque(waiting), dict[str, BaseProcess]()
    try:
        while queue or running:
            while queue and len(running) < workers:
                name = queue.popleft()
                running[name] = start(name)
            wait([process.sentinel for process in running.values()])
            for name in [name for name, process in running.items() if not process.is_alive()]:
                finish(name, running.pop(name))
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join(STOP_S)
            process.kill()


def _lost(model: FleetModel, process: BaseProcess, output: Path) -> FleetResult:
    """Return the result of a model whose process ended without one."""
    code = process.exitcode or 0
    how = f"was killed by signal {-code}; memory may be short" if code < 0 else f"ended with exit code {code}"
    return FleetResult(model=model.name, verdict="broke", reason=f"its process {how}; see {output}")


def _told(result: FleetResult) -> str:
    if result.verdict != "passed":
        return f"{result.outcome}: {result.reason.partition(chr(10))[0]}"
    return f"passed, {result.winner}" + (f" {ratio(result.speedup)}" if result.speedup else "")


def _print_into(path: Path) -> None:
    """Write what this process prints, libraries in C++ included, into a file: the terminal shows the fleet."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
