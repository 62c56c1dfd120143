"""What was measured stays when a run is killed, is cancelled twice, or loses Prefect's server."""

import json
import signal
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from harness import command, journal, started_run
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.local_run import using_server
from flows.record.benchmark_slot import benchmark_slot
from flows.record.run import CANCELLED, INTERRUPTED
from flows.servers.password import CLIENT
from flows.servers.ports import free_port
from gauntlet.core.run_report import RunReport

LONG_RACE = ("benchmark.rounds=1000", "benchmark.block_ms=50")  # minutes, unless it is ended
OWN_SERVER = {"PREFECT_API_URL": "", "PREFECT_CLIENT_MAX_RETRIES": "1"}


def in_mlflow(run: Path) -> dict[str, MlflowRun]:
    """Return what MLflow has of a run: its parent, and its candidates by name."""
    client, known = (
        MlflowClient(f"sqlite:///{run.parents[1] / 'mlflow.db'}"),
        json.loads((run / "sent.json").read_text()),
    )
    return {name: client.get_run(run_id) for name, run_id in known["runs"].items()}


@pytest.mark.slow
def test_run_that_was_killed_in_its_race_has_a_report_at_the_next_look(folder: Path) -> None:
    process, run = started_run(folder, "alone benchmark", *LONG_RACE)
    process.kill()
    process.wait()
    assert not (run / "report.json").exists()

    shown = command(folder, "show", run.name)
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
    assert command(folder, "sync").stdout.startswith("0 of 0")  # nothing is left to close


@pytest.mark.slow
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


@pytest.mark.slow  # Prefect tries again for a minute
def test_run_passes_though_its_prefect_server_dies_in_the_race(folder: Path) -> None:
    process, run = started_run(folder, "alone benchmark", "benchmark.rounds=40", **OWN_SERVER)
    server = json.loads((folder / ".gauntlet/prefect/server.json").read_text())
    psutil.Process(server["pid"]).kill()
    assert process.wait(280) == 0
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert report.verdict == "passed"
    assert "not decided" not in {candidate.status for candidate in report.candidates}


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
