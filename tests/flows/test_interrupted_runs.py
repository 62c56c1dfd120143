"""What was measured stays when a run is killed, is cancelled twice, loses Prefect's server, or meets a full disk."""

import asyncio
import json
import os
import signal
import subprocess
import time
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import onnx
import onnx_text
import psutil
import pytest
from fake_runs import fake_run, waiting_run
from free_ports import free_port
from harness import GAUNTLET, SHORT, called, journal, sets, started_run
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from configs.schema import PipelineConfig
from flows.local_run import find_own_run, using_server, wait_for_prefect_events
from flows.record.benchmark_slot import benchmark_slot
from flows.record.home import Home, new_run_id
from flows.record.journal import Journal, everything_sent
from flows.record.run import CANCELLED, INTERRUPTED
from flows.servers.password import CLIENT
from flows.tracking.events import TrackingEvents
from gauntlet.core.run_report import RunReport
from gauntlet.core.shipping import configured_stages

LONG_RACE = ("benchmark.rounds=1000", "benchmark.block_ms=50")  # minutes, unless it is ended
OWN_SERVER = {"PREFECT_API_URL": "", "PREFECT_CLIENT_MAX_RETRIES": "1"}


def in_mlflow(run: Path) -> dict[str, MlflowRun]:
    """Return what MLflow has of a run: its parent, and its candidates by name."""
    client = MlflowClient(f"sqlite:///{run.parents[1] / 'mlflow.db'}")
    known = json.loads((run / "sent.json").read_text())
    return {name: client.get_run(run_id) for name, run_id in known["runs"].items()}


@pytest.mark.slow
def test_run_that_was_killed_in_its_race_has_a_report_at_the_next_look(folder: Path) -> None:
    process, run = started_run(folder, "alone benchmark", *LONG_RACE)
    process.kill()
    process.wait()
    assert not (run / "report.json").exists()

    shown = called(folder, "show", run.name)
    assert shown.returncode == 0, shown.stderr
    assert INTERRUPTED in " ".join(shown.stdout.split())
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert (report.verdict, report.reason, report.stopped_at) == ("failed", INTERRUPTED, "benchmark")
    assert (run / "report.html").exists()
    measured = {c.name: c for c in report.candidates if c.sqnr_db is not None}
    assert measured
    assert {c.status for c in measured.values()} <= {"not decided", "rejected"}
    recorded = in_mlflow(run)
    assert recorded["pipeline"].info.status == "KILLED"
    for name, candidate in measured.items():
        assert recorded[name].data.metrics["quality.sqnr_db"] == pytest.approx(candidate.sqnr_db)
    assert called(folder, "sync").stdout.startswith("0 of 0")  # nothing is left to close


@pytest.mark.nightly
def test_second_interruption_leaves_a_whole_record_in_which_nothing_unmeasured_is_accepted(folder: Path) -> None:
    process, run = started_run(folder, "alone benchmark", *LONG_RACE)
    process.send_signal(signal.SIGINT)
    time.sleep(0.15)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert (report.verdict, report.reason) == ("cancelled", CANCELLED)
    assert (run / "report.html").exists()
    assert [e["status"] for e in journal(run) if e["op"] == "end" and e["run"] == "pipeline"] == ["KILLED"]
    recorded = in_mlflow(run)
    assert recorded["pipeline"].info.status == "KILLED"
    undecided = [c.name for c in report.candidates if c.status == "not decided"]
    assert undecided
    assert [c.name for c in report.candidates if c.status == "accepted"] == ["fp32"]
    assert {recorded[name].data.tags["gate"] for name in undecided} == {"not decided"}
    assert not [e for e in journal(run) if e["op"] == "model" and e["run"] in undecided]


@pytest.mark.slow
def test_run_that_is_closed_again_after_a_kill_has_each_point_once(folder: Path) -> None:
    home = Home(folder / ".gauntlet")
    run = home.require_run()
    report, events = RunReport.read(run / "report.json"), [event for event in journal(run) if event["op"] != "end"]
    (run / "journal.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (run / "sent.json").write_text(json.dumps(json.loads((run / "sent.json").read_text()) | {"events": len(events)}))
    tracking = TrackingEvents(home, PipelineConfig.model_validate(report.config), Journal(run / "journal.jsonl"))
    tracking.restore()
    tracking.closed(report)
    again = [event["op"] for event in journal(run)[len(events) :]]
    assert ("metrics" in again, "end" in again, everything_sent(run)) == (False, True, True)


@pytest.mark.nightly  # Prefect tries again for a minute
def test_run_passes_though_its_prefect_server_dies_in_the_race(folder: Path) -> None:
    process, run = started_run(folder, "alone benchmark", "benchmark.rounds=40", **OWN_SERVER)
    server = json.loads((folder / ".gauntlet/prefect/server.json").read_text())
    psutil.Process(server["pid"]).kill()
    assert process.wait(280) == 0
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert report.verdict == "passed"
    assert "not decided" not in {candidate.status for candidate in report.candidates}


def test_run_of_another_container_is_not_this_process_s(tmp_path: Path) -> None:
    """In each of them, the process may be number 1."""
    home = Home(tmp_path)
    for name in (own := new_run_id("model"), f"{own}-later"):
        Journal(home.runs / name / "journal.jsonl").append("start", pid=os.getpid())
        (home.runs / name / "report.json").write_text("{}")
    assert find_own_run(home, set()) == home.runs / own
    assert find_own_run(home, {home.runs / own}) is None


def test_prefect_calls_the_server_of_each_run_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a second run calls the first one's, which has ended."""
    for run in ("first", "second"):
        monkeypatch.setenv(CLIENT, f"gauntlet:{run}")
        with using_server(f"http://{run}/api"):
            assert PREFECT_API_URL.value() == f"http://{run}/api"
            assert PREFECT_API_AUTH_STRING.value() == f"gauntlet:{run}"


def test_benchmark_needs_no_slot_of_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))  # as in a run that a worker started
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        reached = []
        with benchmark_slot():
            reached.append("benchmark")
    assert reached


QUICK = (*SHORT, "quantize=[]", "optimize=[]", "benchmark.deploy_targets=[]")
MODEL = """m (float[n,16] x) => (float[n,4] y) <float[16,2000] w, float[2000,2000] v, float[2000,4] u>
{ h = MatMul(x, w) k = MatMul(h, v) y = MatMul(k, u) }"""

SCRIPT = """
mount -t tmpfs -o size="$1"m tmpfs home && shift || exit 99
"$@" 2>small; echo $? >small.rc
mount -o remount,size=1g home
"$@"
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("megabytes", [2, 12])  # the databases of the servers, or the artifacts, do not fit
def test_full_disk_is_one_clear_error_and_the_next_run_continues(tmp_path: Path, megabytes: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("unshare may not make a mount of its own here")
    onnx.save(onnx_text.model(MODEL), tmp_path / "model.onnx")
    words = [GAUNTLET, "run", "model.onnx", *sets(*QUICK)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", str(megabytes), "env", f"GAUNTLET_HOME={home}", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "small.rc").read_text() == "3\n", done.stdout
    assert f"gauntlet: {home}: the disk is full. Fix: free space" in (tmp_path / "small").read_text()
    assert "Traceback" not in (tmp_path / "small").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Winner" in done.stdout


ORDER = ("data", "train", "evaluate", "export", "normalize", "structure", "numerics", "optimize")
ORDER += ("accuracy", "calibrate", "quantize", "benchmark", "explain", "select", "package")


def test_every_stage_goes_through_the_seam_that_is_killed_below(finished_home: Path) -> None:
    pytest.importorskip("wings.explanation")
    run = Home(finished_home / ".gauntlet").finished_run()
    assert run is not None
    started, finished = (
        {(e["stage"], e["key"]) for e in journal(run) if e["op"] == op} for op in ("work_started", "work_finished")
    )
    assert started == finished
    assert {stage for stage, _ in started} == {*ORDER} | {*configured_stages(PipelineConfig(), "quantized")}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["make", pytest.param("race", marks=pytest.mark.nightly)])
def test_work_that_a_killed_run_has_finished_is_not_repeated(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """In a candidate's stage, and in a measured one."""
    process, _ = waiting_run(tmp_path, stage)
    process.kill()
    process.wait()
    home = Home(tmp_path)
    [killed] = home.run_folders()
    assert not (killed / "report.json").exists()
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    fake_run(PipelineConfig())
    [again] = set(home.run_folders()) - {killed}
    report = RunReport.model_validate_json((again / "report.json").read_bytes())
    made = [("begin", None), ("make", "worse"), ("make", "good"), ("make", "better"), ("race", None)]
    assert [(entry.stage, entry.candidate) for entry in report.stages] == made
    before, after = ([e for e in journal(run) if e["op"] == "work_finished"] for run in (killed, again))
    assert len(finished := {event["key"] for event in before}) == (1 if stage == "make" else 4)
    assert {event["key"] for event in after if event["cached"]} == finished
    # Neither MLflow nor Prefect shows the run as running.
    assert journal(killed)[-1]["status"] == "KILLED"
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(journal(killed)[0]["tags"]["prefect.flow_run_id"])).state
    assert state.type.value == "CRASHED"


def test_what_prefect_still_sends_is_waited_for_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.local_run.responds", lambda _: True)
    with warnings.catch_warnings(record=True) as said, closing(asyncio.new_event_loop()) as loop:
        loop.call_soon(wait_for_prefect_events, "http://127.0.0.1:9/api", None)
        loop.run_until_complete(asyncio.sleep(0))
    assert not [str(warning.message) for warning in said]


def test_events_that_prefect_does_not_take_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flows.local_run.responds", lambda _: True)
    monkeypatch.setattr(EventsWorker, "drain_all", partial(int, "lost"))
    wait_for_prefect_events("http://127.0.0.1:9/api", None)
    assert "Prefect did not accept the run's last events" in caplog.text
