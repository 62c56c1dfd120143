"""A real Prefect server and a real process worker: deploy, trigger, schedule, refuse, one benchmark at a time."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import journal, quick_config, until
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import AwaitingRetry, Cancelling

from flows.record.home import Home
from flows.record.run import CANCELLED
from flows.servers.local_servers import stop
from gauntlet.core.run_report import RunReport

PROJECT = Path(__file__).parents[2]
POOL = "gauntlet"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
wait = partial(until, seconds=240)


@pytest.fixture(scope="module")
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="module")
def worker_home(
    client: SyncPrefectClient, finished_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """The home of a worker that serves the deployments of `prefect.yaml`."""
    home = Home(tmp_path_factory.mktemp("worker") / ".gauntlet")
    shutil.copytree(finished_home / ".gauntlet", home.root)
    environment = {**os.environ, "GAUNTLET_HOME": str(home.root), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    prefect = Path(sys.executable).with_name("prefect")
    client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
    words = [prefect, "--no-prompt", "deploy", "--all"]
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    worker = subprocess.Popen(
        [prefect, "worker", "start", "--pool", POOL],
        cwd=home.root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield home
    stop(psutil.Process(worker.pid))  # with the runs that the schedule started meanwhile
    worker.wait(timeout=60)


def start(client: SyncPrefectClient, *settings: str) -> FlowRun:
    deployment = client.read_deployment_by_name("gauntlet/on-demand")
    config = quick_config("optimize=[]", "quantize=[]", *settings).model_dump(mode="json")
    return client.create_flow_run_from_deployment(deployment.id, parameters={"config": config})


def ended(client: SyncPrefectClient, run: FlowRun) -> FlowRun | None:
    now = client.read_flow_run(run.id)
    return now if now.state is not None and now.state.is_final() else None


def has_process(run: FlowRun) -> bool:
    environments = (process.info["environ"] or {} for process in psutil.process_iter(["environ"]))
    return any(variables.get("PREFECT__FLOW_RUN_ID") == str(run.id) for variables in environments)


def test_both_deployments_exist_and_the_nightly_one_is_scheduled(client: SyncPrefectClient, worker_home: Home) -> None:
    nightly = client.read_deployment_by_name("gauntlet/nightly")
    assert [(s.active, str(getattr(s.schedule, "cron", ""))) for s in nightly.schedules] == [(True, "0 2 * * *")]
    on_demand = client.read_deployment_by_name("gauntlet/on-demand")
    assert on_demand.schedules == []
    form = str(on_demand.parameter_openapi_schema)
    assert "min_accuracy" in form
    assert "share of test images classified correctly" in form  # the form explains its fields
    assert "use no results of earlier runs" in form


def test_bad_parameter_is_refused_by_the_server(client: SyncPrefectClient, worker_home: Home) -> None:
    deployment = client.read_deployment_by_name("gauntlet/on-demand")
    config = quick_config().model_dump(mode="json")
    config["train"]["epochs"] = -5
    with pytest.raises(PrefectHTTPStatusError) as refused:
        client.create_flow_run_from_deployment(deployment.id, parameters={"config": config})
    assert refused.value.response.status_code == 409
    assert "epochs" in refused.value.response.text


@pytest.mark.nightly
def test_two_runs_at_once_complete_and_never_benchmark_at_the_same_time(
    client: SyncPrefectClient, worker_home: Home
) -> None:
    before = set(worker_home.run_folders())
    # Long enough that two of them would overlap if nothing kept them apart.
    runs = [start(client, "benchmark.rounds=10", "benchmark.block_ms=60") for _ in range(2)]
    for run in runs:
        final = wait(lambda run=run: ended(client, run))
        assert final.state.name == "Completed", final.state.message
    folders = set(worker_home.run_folders()) - before
    assert len(folders) == 2
    spans = sorted(benchmark_span(folder) for folder in folders)
    assert spans[0][1] <= spans[1][0], f"benchmarks overlap: {spans}"
    limits = {limit.name for limit in client.read_global_concurrency_limits(limit=10, offset=0)}
    assert any(name.startswith("gauntlet-benchmark-") for name in limits)


def benchmark_span(folder: Path) -> tuple[float, float]:
    """When the race itself ran: it had the host from `alone` on."""
    events = {e["op"]: e["time_ms"] for e in journal(folder) if e.get("stage") == "benchmark"}
    return events["alone"], events["work_finished"]


def test_failed_gate_fails_the_flow_run_with_its_reason_and_leaves_the_gate_table(
    client: SyncPrefectClient, worker_home: Home
) -> None:
    run = start(client, "numerics.max_rel_error=1e-12")
    final = wait(lambda: ended(client, run))
    assert final.state.type.value == "FAILED"
    assert final.state.message.startswith("numerics.max_rel_error: ")
    assert "Fix: " in final.state.message
    artifacts = client.read_artifacts(
        artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
    )
    report = next(a for a in artifacts if a.key == "gate-report")
    assert "numerics.max_rel_error" in str(report.data)
    assert str(report.description).startswith("Failed: numerics.max_rel_error: ")
    assert {"mlflow-run"} <= {a.key for a in artifacts}
    states = {t.name: t.state_name for t in client.read_task_runs(flow_run_filter=by("id", run.id))}
    assert states["numerics"] == "Completed"
    assert states["numerics gate"] == "Failed"
    assert states["train"] == "Cached"
    wait(lambda: not has_process(run))  # it sends the last of its log when it ends
    log = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
    assert not [line.message for line in log if "Traceback" in line.message]
    assert "optimize ort-extended" not in states


def by(key: str, value: Any) -> FlowRunFilter:
    return FlowRunFilter.model_validate({key: {"any_": [str(value)]}})


@pytest.mark.nightly  # it waits for Prefect's own clock
def test_schedule_fires(client: SyncPrefectClient, worker_home: Home) -> None:
    deployment = client.read_deployment_by_name("gauntlet/on-demand")
    config = quick_config("optimize=[]", "quantize=[]")
    update = DeploymentUpdate(parameters={"config": config.model_dump(mode="json")})
    client.update_deployment(deployment.id, update)
    schedules = client.create_deployment_schedules(
        deployment.id, [(IntervalSchedule(interval=timedelta(seconds=20)), True)]
    )
    try:
        fired = wait(lambda: scheduled_and_done(client, deployment.id))
    finally:
        for schedule in schedules:
            client.delete_deployment_schedule(deployment.id, schedule.id)
    assert fired.state.name == "Completed", fired.state.message


def scheduled_and_done(client: SyncPrefectClient, deployment: Any) -> FlowRun | None:
    found = client.read_flow_runs(flow_run_filter=by("deployment_id", deployment))
    return next((r for r in found if r.auto_scheduled and r.state is not None and r.state.is_final()), None)


def unchanged(client: SyncPrefectClient, run: FlowRun, seconds: float = 30) -> bool:
    """Tell whether a run has ended, and its state stays as it is for some time: nobody clicks Retry faster."""
    first = ended(client, run)
    if first is None:
        return False
    time.sleep(seconds)
    return client.read_flow_run(run.id).state_id == first.state_id


def at_work(home: Home, stage: str, run: FlowRun) -> Path | None:
    """Return the folder of a flow run that is at work on a stage; others may be, which a schedule has started."""
    for folder in home.run_folders():
        events = journal(folder) if (folder / "journal.jsonl").exists() else []
        started = any(e["op"] == "work_started" and e["stage"] == stage for e in events)
        if started and events[0]["tags"].get("prefect.flow_run_id") == str(run.id):
            return folder
    return None


@pytest.mark.nightly
def test_cancelled_run_ends_as_cancelled_in_every_view_and_leaves_no_process(
    client: SyncPrefectClient, worker_home: Home
) -> None:
    run = start(client, "benchmark.rounds=1000", "benchmark.block_ms=50")  # minutes, unless it is cancelled
    folder = wait(lambda: at_work(worker_home, "benchmark", run))
    flow = psutil.Process(journal(folder)[0]["pid"])
    workers = wait(lambda: flow.children(recursive=True))
    client.set_flow_run_state(run.id, Cancelling())
    assert wait(lambda: ended(client, run)).state.type.value == "CANCELLED"
    psutil.wait_procs([flow, *workers], timeout=120)
    assert not [process for process in (flow, *workers) if process.is_running()]
    report = RunReport.model_validate_json((folder / "report.json").read_bytes())
    assert (report.verdict, report.reason) == ("cancelled", CANCELLED)
    assert [e["status"] for e in journal(folder) if e["op"] == "end" and e["run"] == "pipeline"] == ["KILLED"]


@pytest.mark.nightly
def test_killed_run_is_retried_under_its_own_id(client: SyncPrefectClient, worker_home: Home) -> None:
    run = start(client, "benchmark.rounds=40")
    folder = wait(lambda: at_work(worker_home, "benchmark", run))
    psutil.Process(journal(folder)[0]["pid"]).kill()
    wait(lambda: unchanged(client, run))  # the worker notices, and may report the crash twice
    client.set_flow_run_state(run.id, AwaitingRetry(scheduled_time=datetime.now(UTC)), force=True)  # the button "Retry"
    final = wait(lambda: ended(client, run))
    assert (final.state.name, final.run_count) == ("Completed", 2), final.state.message
    assert [e["status"] for e in journal(folder) if e["op"] == "end" and e["run"] == "pipeline"] == ["KILLED"]
