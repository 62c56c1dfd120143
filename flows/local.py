"""A run in this process, started from the command line."""

import importlib
import json
import os
import time
import urllib.request
from pathlib import Path

from configs.schema import PipelineConfig
from flows.home import Home
from flows.journal import Journal
from flows.servers import prefect_api
from tasks.errors import PipelineError, StageError

SETTLE_TIMEOUT_S = 20


def run_local(config: PipelineConfig, home: Home, *, fresh: bool) -> tuple[Path, int]:
    """Run the flow; return the run's folder, where its report tells the story, and the exit code.

    With `fresh`, results of earlier work are not used.
    """
    # Prefect's own lines go to its server; the terminal shows ours. It reads this when it is imported, below.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    before = set(home.run_folders())
    problem: PipelineError | None = None

    def meanwhile() -> None:
        importlib.import_module("flows.pipeline")
        importlib.import_module("flows.tracking").make_ready(home, config)
        importlib.import_module("flows.identity").installed_packages()  # the first stage asks for them

    with prefect_api(home, meanwhile=meanwhile) as api:
        from flows.pipeline import pipeline
        from flows.run import FRESH

        FRESH.set(fresh)
        try:
            pipeline(config)
        except PipelineError as error:
            problem = error
        except Exception as error:  # a fault of ours: the run's folder has the traceback
            problem = StageError(f"{type(error).__name__}: {error}")
        finally:
            folder = own_run(home, before)
            settle(api, folder)
    if folder is None:
        raise problem or StageError("the run left no report")
    return folder, problem.exit_code if problem else 0


def own_run(home: Home, before: set[Path]) -> Path | None:
    """Return the folder of the run that this process made; others may have made theirs in the meantime."""
    for folder in reversed(home.run_folders()):
        if folder not in before and (folder / "report.json").exists():
            first = next(iter(Journal(folder / "journal.jsonl")))
            if first["pid"] == os.getpid():
                return folder
    return None


def settle(api: str, folder: Path | None) -> None:
    """Wait until the Prefect server has written the run's last task: it gets them as events and writes them later.

    A server that is stopped too early would show a run without half of its tasks, and Prefect's threads in this process
    would wait a minute for it when we end.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=SETTLE_TIMEOUT_S)
    if folder is None:
        return
    events = list(Journal(folder / "journal.jsonl"))
    flow_run = events[0]["tags"].get("prefect.flow_run_id")
    expected = 2 * sum(event["op"] == "work_finished" for event in events)
    question = {
        "flow_runs": {"id": {"any_": [flow_run]}},
        "task_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}},
    }
    request = urllib.request.Request(
        f"{api}/task_runs/count", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while flow_run and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                if json.load(response) >= expected:
                    return
        except OSError:
            return
        time.sleep(0.2)
