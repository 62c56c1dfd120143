"""MLflow gets everything once, whether it listens during the run or not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from free_ports import free_port
from harness import quick_config
from mlflow import MlflowClient

from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.record.journal import everything_sent
from flows.servers.local_servers import start_mlflow, stop
from flows.servers.ports import Port
from flows.tracking.sender import Sender
from gauntlet.core.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], MlflowClient]]]:
    """The address of a tracking server that is down, and how to bring it up."""
    port, processes = Port(free_port()), []

    def up() -> MlflowClient:
        processes.append(start_mlflow(Home(tmp_path / "server"), port))
        return MlflowClient(port.address)

    yield port.address, up
    for process in processes:
        stop(psutil.Process(process.pid))


def counts(client: MlflowClient, name: str) -> dict[str, int]:
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id])
    parents = [r for r in runs if r.data.tags["stage"] == "pipeline"]
    history = client.get_metric_history(parents[0].info.run_id, "train.validation_loss")
    models = client.search_logged_models([experiment.experiment_id])
    counted = {"runs": len(runs), "parents": len(parents), "epochs": len(history), "models": len(models)}
    return counted | {"traces": len(client.list_artifacts(parents[0].info.run_id, "artifacts/benchmark"))}


def accepted_models(report: RunReport) -> set[str]:
    """The digests of the models that no gate rejected: each is one model in MLflow."""
    return {c.artifact.sha256 for c in report.candidates if c.status == "accepted" and c.artifact}


def sent_traces(report: RunReport) -> int:
    race = report.stage("benchmark")
    assert race.artifacts
    return len(race.artifacts)


@pytest.mark.nightly
def test_run_goes_on_without_its_server_and_sync_sends_everything_exactly_once(
    run: Run, home: Home, server: tuple[str, Callable[[], MlflowClient]], capsys: pytest.CaptureFixture[str]
) -> None:
    uri, up = server
    # A training of its own, so that there are live metrics to send.
    report = run(
        quick_config(
            f"tracking.uri={uri}",
            "train.epochs=4",
            "evaluate.min_accuracy=0.5",
            "evaluate.min_recall=0",
            "benchmark.profile=true",
        )
    )
    assert report.verdict == "passed"
    assert "MLflow run" not in report.links
    sender = Sender(home, home.runs / report.run_id)
    assert not everything_sent(sender.folder)
    assert not sender.send()

    client = up()
    assert sender.send()
    assert "View run" not in capsys.readouterr().out  # a terminal is for the gauntlet's own lines
    assert everything_sent(sender.folder)
    sent = len(accepted_models(report))
    expected = {
        "runs": 1 + len(report.candidates),
        "parents": 1,
        "epochs": 4,
        "models": sent,
        "traces": sent_traces(report),
    }
    assert counts(client, "digits-small-cnn") == expected

    # A kill between an operation and the note that it was done: everything is sent again, nothing is doubled.
    state = json.loads(sender.state_path.read_text())
    sender.state_path.write_text(json.dumps({**state, "events": 0}))
    assert sender.send()
    assert counts(client, "digits-small-cnn") == expected


def test_mlflow_shows_the_run_with_its_candidates(finished_home: Path, finished: RunReport) -> None:
    pytest.importorskip("wings.drawings")
    report = finished
    client = MlflowClient(Home(finished_home / ".gauntlet").mlflow_uri)
    experiment = client.get_experiment_by_name("digits-small-cnn")
    runs = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    parent = runs[report.run_id]
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["winner"] == report.winner
    assert parent.data.params["train.architecture"] == "small-cnn"
    assert parent.data.metrics["quality.top1"] == report.candidates[0].accuracy
    assert "best.latency.b1.p50_ms" in parent.data.metrics
    assert {d.dataset.name for d in parent.inputs.dataset_inputs} == {
        f"digits-{split}" for split in ("train", "validation", "calibration", "test")
    }
    folders = ("report", "pictures", "artifacts/package/bundle")
    files = {f.path for folder in folders for f in client.list_artifacts(parent.info.run_id, folder)}
    reports = {f"report/{name}" for name in ("report.json", "report.md", "report.html", "environment.json")}
    images = {f"pictures/{name}.png" for name in ("confusion_matrix", "reliability_diagram", "curves")}
    assert files == reports | images | {"pictures/pareto.svg", "artifacts/package/bundle/bundle.zip"}
    for candidate in report.candidates:
        child = runs[f"digits-small-cnn-{candidate.name}"]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.tags["gate"] == {"accepted": "pass", "rejected": "fail"}.get(
            candidate.status, candidate.status
        )
        assert child.data.tags["gate.reason"] == candidate.reason
        assert child.data.tags.get("target") == child.data.params.get("target") == candidate.target
        flips = [e.facts["flips"] for e in report.stages if (e.stage, e.candidate) == ("accuracy", candidate.name)]
        assert ("flips.json" in {f.path for f in client.list_artifacts(child.info.run_id)}) == any(flips)
        for row in candidate.benchmark[:1]:  # none of those that a gate dropped before the race
            assert child.data.metrics["latency.b1.p50_ms"] == row.median_ms
            assert child.data.metrics["speedup.b1.low"] == row.speedup_low
    assert {c.target for c in report.candidates} == {"ort-cpu", None}  # None: rejected before the benchmark
    assert {"fp32", "static-u8s8"} <= {candidate.name for candidate in report.candidates if candidate.benchmark}
    models = {m.params["sha256"]: m for m in client.search_logged_models([experiment.experiment_id])}
    assert set(models) == accepted_models(report)
    assert all(str(m.status) == "READY" for m in models.values())


def test_mlflow_has_every_artifact_and_every_candidates_gates_and_classes(
    finished_home: Path, finished: RunReport
) -> None:
    report, home = finished, Home(finished_home / ".gauntlet")
    client = MlflowClient(home.mlflow_uri)
    experiment = client.get_experiment_by_name("digits-small-cnn")
    runs = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    entries = [entry for entry in report.stages if entry.stage != "data"]
    seen = set()
    for entry in entries:
        run = runs[f"digits-small-cnn-{entry.candidate}" if entry.candidate else report.run_id]
        for key, artifact in entry.artifacts.items():
            if key in ("model", "normalized") and artifact.name.endswith(".onnx"):
                continue
            folder = f"artifacts/{entry.stage}/{key}"
            [file] = client.list_artifacts(run.info.run_id, folder)
            assert Path(file.path).name in (artifact.name, f"{artifact.name}.link.json")
            seen.add((entry.stage, key))
        if entry.candidate:
            gates = {f"gate.{check.name}": check.value for check in entry.checks if check.value is not None}
            assert {name: run.data.metrics[name] for name in gates} == pytest.approx(gates)
    assert {("train", "model"), ("train", "golden"), ("calibrate", "ranges"), ("benchmark", "trace_reference")} <= seen
    dropped = [c for c in report.candidates if c.status != "accepted" and c.artifact]
    assert dropped
    for candidate in dropped:
        folder = f"artifacts/{candidate.status.replace(' ', '-')}"
        files = client.list_artifacts(runs[f"digits-small-cnn-{candidate.name}"].info.run_id, folder)
        assert [Path(file.path).name.partition(".onnx")[0] for file in files] == [Path(candidate.artifact.name).stem]
    reference = runs["digits-small-cnn-fp32"].data.metrics
    assert "gate.evaluate.min_accuracy" in reference
    scored = [c.name for c in report.candidates if report.stage("accuracy", c.name) or c.name == "fp32"]
    for name in scored:
        metrics = runs[f"digits-small-cnn-{name}"].data.metrics
        assert {f"class.{digit}.{score}" for digit in range(10) for score in ("precision", "recall", "f1")} <= set(
            metrics
        )
    assert not [name for name in runs[report.run_id].data.metrics if name.startswith(("best.gate", "best.class"))]
    [row] = next(c for c in report.candidates if c.name == "fp32").benchmark
    assert reference["throughput.b1.images_per_second"] == pytest.approx(row.images_per_second)
    assert reference["latency.b1.mean_ms"] == pytest.approx(row.mean_ms)
    assert reference["memory.b1.peak_mb"] == pytest.approx(row.peak_rss_bytes / 1e6)
