"""A run in this process, started from the command line."""

import contextlib
import importlib
import json
import logging
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from configs.schema import PipelineConfig
from flows.record.home import OWN_RUNS, Home
from flows.record.journal import Journal
from flows.servers.local_servers import prefect_server, responds
from flows.servers.password import CLIENT, authorization, refusal
from gauntlet.core.errors import PipelineError, StageError
from gauntlet.runtime.signals import signals_held_back

log = logging.getLogger("gauntlet")
SETTLE_TIMEOUT_S = 20
FULL_BYTES = 1_000_000
"""With less free space, a disk counts as full."""


def run_local(
    config: PipelineConfig, home: Home, *, fresh: bool, minutes: float | None = None
) -> tuple[Path, PipelineError | None]:
    """Run the flow; return the run's folder, which holds its report, and what failed it.

    With `fresh`, results of earlier runs are not used. The run should take no more than `minutes`.
    """
    # Prefect's own lines go to its server; the terminal shows ours. Prefect reads this when it is imported, below.
    logging.raiseExceptions = False  # nor does Prefect print that its server does not take a line
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    before = set(home.run_folders())
    problem: PipelineError | None = None

    def prepare() -> None:
        with signals_held_back("the packages are being loaded; this takes seconds"):
            importlib.import_module("flows.pipeline")
            with contextlib.suppress(ModuleNotFoundError):  # MLflow, which need not be installed
                importlib.import_module("flows.tracking.replay")
            importlib.import_module("flows.tracking.server").prepare_local_store(home, config)
            importlib.import_module("gauntlet.core.user_code").installed_packages()  # the first stage needs them

    with explain_full_disk(home), prefect_server(home, while_starting=prepare) as api:
        from flows.pipeline import pipeline

        try:
            with using_server(api):
                pipeline(config, fresh=fresh, minutes=minutes)
        except PipelineError as error:
            problem = error
        except Exception as error:  # a bug: the run's folder has the traceback
            problem = refusal(error) or _cause(error)
        finally:
            folder = find_own_run(home, before)
            with using_server(api):
                wait_for_prefect_events(api, folder)
        if folder is None:
            raise problem or StageError("the run left no report")
    passed = json.loads((folder / "report.json").read_bytes())["verdict"] == "passed"  # whether Prefect knows or not
    return folder, None if passed else problem


@contextmanager
def using_server(api: str) -> Iterator[None]:
    """Let Prefect use the server at an address: it keeps that of its import, perhaps for an earlier run."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    access = {PREFECT_API_AUTH_STRING: os.environ[CLIENT]} if CLIENT in os.environ else {}
    with temporary_settings({PREFECT_API_URL: api} | access):
        yield


def _cause(error: BaseException) -> PipelineError:
    """Return what ended the flow: Prefect may raise an error of its own when its server does not take the end."""
    chained: BaseException | None = error
    while chained is not None and not isinstance(chained, PipelineError):
        chained = chained.__context__
    return chained or StageError(f"{type(error).__name__}: {error}")


@contextmanager
def explain_full_disk(home: Home) -> Iterator[None]:
    """Name the cause where the disk is full: whatever could not write may only say that it broke."""
    try:
        yield
    except (PipelineError, OSError) as error:
        is_full = home.root.is_dir() and shutil.disk_usage(home.root).free <= FULL_BYTES
        if "No space left" not in str(error) and not is_full:
            raise
        raise StageError(
            f"{home.root}: the disk is full. Fix: free space, for example with gauntlet clean, "
            "and run the same command again: it continues where this run stopped"
        ) from error


def find_own_run(home: Home, before: set[Path]) -> Path | None:
    """Return the folder of this process's run; other processes may have started runs in the meantime."""
    own = (folder for folder in home.finished_runs() if folder.name in OWN_RUNS and folder not in before)
    return next(own, None)


def wait_for_prefect_events(api: str, folder: Path | None) -> None:
    """Wait until the Prefect server has written the run's last task: it receives them as events and writes them later.

    A server that is stopped too early shows a run without half of its tasks, and Prefect's threads in this process wait
    a minute for it at exit.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    lost = not responds(f"{api}/health")
    if lost:  # nobody takes them, and each one would be tried again for seconds
        for service in (APILogWorker.instance(), EventsWorker.instance()):
            service._queue.queue.clear()
    with ThreadPoolExecutor() as pool:  # in a notebook's thread, Prefect would only return something to await
        sent = [pool.submit(worker.drain_all, timeout=SETTLE_TIMEOUT_S) for worker in (APILogWorker, EventsWorker)]
    for error in filter(None, (future.exception() for future in sent)):
        log.warning("Prefect did not accept the run's last events: %s", error)
    if folder is None or lost:
        return
    events = list(Journal(folder / "journal.jsonl"))
    flow_run = events[0]["tags"].get("prefect.flow_run_id")
    expected = 2 * sum(event["op"] == "work_finished" for event in events)
    query = {
        "flow_runs": {"id": {"any_": [flow_run]}},
        "task_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}},
    }
    headers = {"Content-Type": "application/json", **authorization()}
    request = urllib.request.Request(f"{api}/task_runs/count", json.dumps(query).encode(), headers)
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while flow_run and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                if json.load(response) >= expected:
                    return
        except (OSError, HTTPException):  # such as a server that ends amid its response
            return
        time.sleep(0.2)
