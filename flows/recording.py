"""Opens and closes the record of a run, and connects tracking, the report's files and Prefect's page to it."""

import contextlib
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from configs.schema import PipelineConfig
from flows.record.artifact_paths import keep_in_shared_store
from flows.record.home import Home, new_run_id
from flows.record.journal import Journal, interrupted_runs, open_records
from flows.record.locks import locked
from flows.record.prefect_artifacts import MLFLOW_RUN, publish_artifacts
from flows.record.report_files import read_report, write_report
from flows.record.run import CANCELLED, INTERRUPTED, Run, restore_run
from flows.tracking.events import TrackingEvents
from flows.tracking.sender import Sender
from gauntlet.core.errors import ConfigError, PipelineError, StageError
from gauntlet.runtime.signals import signals_held_back

log = logging.getLogger("gauntlet")

FLOW_RUN = "Prefect flow run"
"""The title of the link to the run's page in Prefect."""


@contextmanager
def recording(config: PipelineConfig, *, fresh: bool = False) -> Iterator[Run]:
    """Record the run that happens inside; however it ends, its report is written."""
    logging.getLogger("gauntlet").setLevel(logging.INFO)
    home, run_id = Home.find(), new_run_id(config.name)
    home.create()
    with home.store.in_use(run_id), locked(home.in_use, shared=True):
        close_interrupted(home)
        tracking = TrackingEvents(home, config, Journal(home.runs / run_id / "journal.jsonl"))
        run = Run(run_id, home, config, fresh=fresh, listeners=(tracking,))
        with locked(run.folder / "lock"), _closed(run, tracking):
            run.open()
            yield run


@contextmanager
def _closed(run: Run, tracking: TrackingEvents) -> Iterator[None]:
    """Close the record, however what happens inside ends."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, PipelineError):
            (run.folder / "error.txt").write_text("".join(traceback.format_exception(error)))
        _close(run, tracking, error)
        raise
    except BaseException:  # a signal: Ctrl-C, SIGTERM, or "Cancel" in Prefect
        _close(run, tracking, StageError(CANCELLED))
        raise
    _close(run, tracking, None)


def _close(run: Run, tracking: TrackingEvents, error: Exception | None) -> None:
    """Write the report before any server is told of it."""
    with signals_held_back("the run's record is being closed; this takes seconds"):
        pages = {FLOW_RUN: runtime.flow_run.ui_url, MLFLOW_RUN: tracking.run_url()}
        report = run.report(error, links={title: str(url) for title, url in pages.items() if url})
        summary = write_report(report, run.folder, run.home.store.root)
        keep_in_shared_store(run.home, run.folder)
        run.close(report)
    if run.prefect_responds:
        publish_artifacts(report, summary)


def close_interrupted(home: Home) -> None:
    """Close the record of runs whose process is gone; Prefect and MLflow would show them as running for ever."""
    for folder in interrupted_runs(home):
        with locked(folder / "lock"):  # another process may be at it
            _close_interrupted(home, folder)


def _close_interrupted(home: Home, folder: Path) -> None:
    """Write the report of what the run has measured, and tell both servers."""
    journal = Journal(folder / "journal.jsonl")
    tags: dict[str, str] = next((e["tags"] for e in journal if e["op"] == "start"), {})
    try:
        _report_interrupted(home, folder, tags.get("prefect.flow_run_url"))
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        log.warning("%s: no report can be made of it: damaged, or begun by another release: %s", folder, error)
    flow_run = tags.get("prefect.flow_run_id")
    if flow_run != runtime.flow_run.id:  # Prefect retries a flow run under its id: it is this process's now
        mark_crashed(flow_run)
    for name in open_records(folder):
        journal.append("tags", run=name, tags={"gate.reason": INTERRUPTED})
        journal.append("end", run=name, status="KILLED")
    Sender(home, folder).send()


def _report_interrupted(home: Home, folder: Path, page: str | None) -> None:
    """Close the record as its own process would have; a report that it has written already stays."""
    run = restore_run(home, folder) if open_records(folder) else None
    if run is None:
        return
    tracking = TrackingEvents(home, run.config, Journal(folder / "journal.jsonl"))
    tracking.restore()
    run.listeners = (tracking,)
    if (written := folder / "report.json").exists():
        report = read_report(written)
    else:
        links = {title: url for title, url in {FLOW_RUN: page, MLFLOW_RUN: tracking.run_url()}.items() if url}
        report = run.report(StageError(INTERRUPTED), links=links)
    write_report(report, folder, home.store.root)
    keep_in_shared_store(home, folder)
    run.close(report)


def mark_crashed(flow_run: str | None) -> None:
    """Set a flow run to Crashed, unless it has ended: nothing else does when a run and its worker were killed."""
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):  # it may be another server's
        state = client.read_flow_run(UUID(flow_run)).state if flow_run else None
        if flow_run is None or state is None or state.is_final():
            return
        message = "The process ended without a verdict; a later run noticed."
        client.set_flow_run_state(UUID(flow_run), Crashed(message=message), force=True)
