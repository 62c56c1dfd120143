"""A second machine: a real worker process with another home, another label and its own environments."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faulty_models
import httpx
import numpy as np
import onnx
import psutil
import pytest
from harness import GAUNTLET, latest_report, until
from mlflow import MlflowClient
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate

from configs.loader import load
from configs.schema import PipelineConfig
from flows.pipeline import pipeline
from flows.record.home import Home
from flows.record.locks import host
from gauntlet.reporting.html_report import render_html
from gauntlet.targets import OrtCpu, environments
from tasks.benchmark import BenchmarkConfig
from wings.machines import dispatch
from wings.machines.dispatch import RemoteRaces
from wings.machines.library.machines_section import machines
from wings.machines.pools import deploy_race, find_or_create, why_absent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FAST = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_HEARTBEAT_SECONDS": "2"}


@contextmanager
def machine(pool: str, folder: Path, store: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `gauntlet worker` as another machine would; end it with all that it has started."""
    command = [str(GAUNTLET), "worker", "--pool", pool, "--store", str(store)]
    own = {"GAUNTLET_HOME": str(folder / "home"), "PREFECT_HOME": str(folder / "prefect"), **environment}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker together with its flow runs, as a power cut does."""
    if process.poll() is not None:
        return
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in family:
        each.kill()
    process.wait()


TARGETS = (
    "ort-cpu, {kind: ort-cpu, spinning: false, on: bench}, {kind: openvino, on: bench}, {kind: ort-cpu, on: nobody}"
)


def brought(folder: Path) -> PipelineConfig:
    """Return the configuration of a small run: a brought model, and no candidate besides it."""
    onnx.save(faulty_models.cnn(), folder / "model.onnx")
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).standard_normal((64, 3, 16, 16), dtype=np.float32))
    files = (f"train.model={folder / 'model.onnx'}", f"data.path={folder / 'samples.npz'}")
    race = ("benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.batch_sizes=[1]", "benchmark.threads=1")
    small = (
        "optimize=[]",
        "quantize=[]",
        "numerics.samples=8",
        "benchmark.profile=false",
        "benchmark.restart_processes=false",
    )
    return load("bring-your-own-onnx", (*files, *race, *small, f"benchmark.targets=[{TARGETS}]"))


@pytest.mark.nightly
def test_report_shows_the_races_of_both_machines(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = Home(tmp_path / "here"), tmp_path / "there"
    folder.mkdir()
    home.store.root.mkdir(parents=True)
    monkeypatch.setenv("GAUNTLET_HOME", str(home.root))
    with machine("bench", folder, home.store.root, PREFECT_WORKER_QUERY_SECONDS="1"):
        until(lambda: why_absent(client, "bench") is None)
        pipeline(brought(tmp_path))
    report = latest_report(home)
    assert report.verdict == "passed", report.reason
    entry = report.stage("remote")
    facts: Any = entry.facts
    raced, openvino, nobody = facts["races"]
    assert raced["machine"]["processor"] == report.environment["processor"]  # in truth, it is the same machine
    [result] = raced["results"]
    assert (result["candidate"], result["reason"], result["status"]) == ("fp32", "", "measured")
    assert [row["target"] for row in result["rows"]] == ["ort-cpu-nospin-on-bench"]
    assert result["aa_deviation"] is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAUNTLET_HOME", str(folder / "home"))
        missing = environments.missing("openvino")  # on that machine
    assert openvino["results"][0]["reason"] == (missing or "")
    assert bool(openvino["reference"]) == (missing is None)
    assert nobody["machine"] is None
    assert "has no work pool 'nobody' with a race" in nobody["results"][0]["reason"]
    found = machines(report)
    assert [race[0] for race in found.tables[0].rows][:2] == ["this run", "ort-cpu-nospin-on-bench"]
    assert "(pool bench)" in render_html(report)
    assert (folder / "home" / "store").is_dir()  # it fetched the files into its own store
    assert all(row.target == "ort-cpu" for candidate in report.candidates for row in candidate.benchmark)
    record = MlflowClient(home.mlflow_uri)
    experiments = [experiment.experiment_id for experiment in record.search_experiments()]
    [fp32] = [run for run in record.search_runs(experiments) if run.data.params.get("candidate") == "fp32"]
    [row] = result["rows"]
    assert fp32.data.metrics["latency.ort-cpu-nospin-on-bench.b1.p50_ms"] == row["median_ms"]
    assert fp32.data.metrics["latency.b1.p50_ms"] == report.candidates[0].benchmark[0].median_ms


def races_on(pool: str, folder: Path, **settings: Any) -> RemoteRaces:
    store = Home(folder / "here").store
    store.root.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(b"never opened")
    model = store.put(folder / "model.onnx")
    config = BenchmarkConfig(targets=(OrtCpu(), OrtCpu(on=pool)), **settings)
    return RemoteRaces(config, store, {"fp32": model}, model)


def test_worker_killed_in_the_middle_fails_its_target_and_is_absent_after(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    first, second = (races_on("doomed", tmp_path) for _ in range(2))
    with host(alone=True), machine("doomed", folder, first.store.root, **FAST) as worker:  # so its race has to wait
        until(lambda: why_absent(client, "doomed") is None)
        first.start()
        [flow_run] = first.flow_runs
        until(lambda: (state := client.read_flow_run(flow_run).state) and state.is_running())
        end(worker)
        [lost] = first.collect()
    assert "was lost in the middle of the race" in (lost.failure or "")
    assert [result.reason for result in lost.results] == [lost.failure]
    state = client.read_flow_run(flow_run).state
    assert state.is_crashed()  # nobody finds it running
    second.start()
    [absent] = second.collect()
    assert (absent.failure, absent.machine) == (None, None)
    why = absent.results[0].reason
    assert "no worker of the work pool 'doomed' is alive (last heartbeat 20" in why
    assert "gauntlet worker --pool doomed" in why


@pytest.mark.parametrize(
    ("workers", "settings", "reason"),
    [
        (set(), {}, "took the race, and none is alive any more"),  # its worker has died since
        ({"one that is busy"}, {"remote_timeout_s": 0.001}, "no result within 0.001 s (benchmark.remote_timeout_s)"),
    ],
    ids=["taken by nobody", "above its time limit"],
)
def test_race_without_a_result_ends_with_the_reason_and_is_cancelled(
    client: SyncPrefectClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: set[str],
    settings: dict[str, Any],
    reason: str,
) -> None:
    find_or_create(client, "brief")
    deploy_race("brief")
    monkeypatch.setattr(dispatch, "why_absent", lambda *_: None)
    monkeypatch.setattr(dispatch, "alive_workers", lambda *_: workers)
    races = races_on("brief", tmp_path, **settings)
    races.start()
    [flow_run] = races.flow_runs
    [ended] = races.collect()
    assert reason in (ended.failure or ended.results[0].reason)
    assert (ended.failure is None) == (not workers)
    assert client.read_flow_run(flow_run).state.is_cancelled()  # a worker that comes later races for nobody


def test_workers_whose_heartbeats_a_server_missed_while_it_was_away_are_not_lost(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_or_create(client, "patient")
    deploy_race("patient")
    looks = list[str]()

    def alive(*_: object) -> set[str]:
        looks.append("look")
        if len(looks) == 1:
            raise httpx.ConnectError("away")
        return set() if len(looks) == 2 else {"one that is busy"}

    monkeypatch.setattr(dispatch, "why_absent", lambda *_: None)
    monkeypatch.setattr(dispatch, "alive_workers", alive)
    monkeypatch.setattr(dispatch, "POLL_S", 0.1)
    races = races_on("patient", tmp_path, remote_timeout_s=5)
    races.start()
    [ended] = races.collect()
    assert "no result within 5 s" in (ended.failure or "")
    assert len(looks) > 2


@pytest.mark.parametrize(
    ("pool", "paused", "reason"),
    [
        ("empty", False, "no worker of the work pool 'empty' is alive (it has had none)"),
        ("resting", True, "the work pool 'resting' is paused; resume it: prefect work-pool resume resting"),
    ],
)
def test_pool_says_why_it_cannot_race(client: SyncPrefectClient, pool: str, paused: bool, reason: str) -> None:
    find_or_create(client, pool)
    deploy_race(pool)
    client.update_work_pool(pool, WorkPoolUpdate(is_paused=paused))
    assert reason in (why_absent(client, pool) or "")
