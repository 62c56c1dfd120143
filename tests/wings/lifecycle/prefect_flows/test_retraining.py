"""The loop, with all its real parts: a served champion meets other images, an alarm comes, it is retrained once."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import QUICK, command, journal, sets, until
from mlflow import MlflowClient
from server_process import json_request, serving

from flows.record.home import Home
from gauntlet.core.errors import StageError
from gauntlet.datasets.digits import Digits
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.lifecycle.library.monitoring.labeled_requests import LabeledRequests
from wings.lifecycle.library.monitoring.monitor_result import MonitorResult
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.library.promotion.retrain_facts import RetrainTask
from wings.lifecycle.prefect_flows.alarm_event import alarm_id
from wings.lifecycle.prefect_flows.retrain_record import RetrainRecord, RetrainRecords
from wings.lifecycle.prefect_flows.retraining import _finish, _promote
from wings.lifecycle.registry.bundle_cache import resolve

NAME = "digits-small-cnn"
RETRAIN = """
import json, sys
from wings.lifecycle.prefect_flows.retraining import ReplayLimits, retrain
from gauntlet.core.errors import PipelineError
name, log, alarm, limits = json.loads(sys.argv[1])
try:
    print(retrain(name, log, alarm=alarm, replay=ReplayLimits(**limits)))
except PipelineError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
"""What a worker does for the deployment `retrain`."""
LIMITS = {"max_accuracy_drop": 0.3, "max_slowdown": 50, "rounds": 6, "unresolved": "accept"}
"""How fast the models are decides nothing here, and there are few old samples."""
FEW = ("evaluate.min_accuracy=0.5", "evaluate.min_recall=0.1", "optimize=[]", "quantize=[{kind: dynamic, weights: s8}]")
"""How good the network is on the old images, and which candidates there are, decides nothing either."""
BATCH = 10


def stream(count: int, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Return digits as the model takes them, white on black turned into black on white, and their classes."""
    digits = Digits().load().splits[split]
    return -digits.take(slice(0, count))["input"], digits.labels[:count]


def ask_and_label(folder: Path, count: int, log: Path) -> None:
    """Serve the champion, send it a stream in requests of several images, and then the right labels."""
    images, labels = stream(count)
    with serving(folder, f"models:/{NAME}@champion", "--request-log", log, "--log-inputs", "all") as server:
        feedback = []
        for start in range(0, count, BATCH):
            chosen = slice(start, start + BATCH)
            body = json_request({"input": images[chosen]})
            sent = server.post(f"/v2/models/{NAME}/infer", body, x_request_id=f"r-{start}")
            assert sent.status == 200, sent.body
            feedback.append({"request_id": f"r-{start}", "labels": labels[chosen].tolist()})
        until(lambda: server.metric("gauntlet_request_log_entries_total", outcome="written") >= len(feedback))
        told = server.post(f"/v2/models/{NAME}/feedback", {"feedback": feedback})
        assert told.status == 202, told.body
        assert server.stop() == 0  # what is queued is written


def accuracy(home: Home) -> float:
    """Return the champion's accuracy on images of the stream that were never sent."""
    images, labels = stream(300, "test")
    session = open_session(resolve(home, f"models:/{NAME}@champion").folder / "model.onnx", threads=1)
    [scores] = batched_inference(session, {"input": images}).run(50).values()
    return float(np.mean(scores.argmax(axis=1) == labels))


def start_retraining(log: Path, alarm: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RETRAIN, json.dumps([NAME, str(log), alarm, LIMITS])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def retrained(log: Path, alarm: str) -> str:
    out, errors = (process := start_retraining(log, alarm)).communicate(timeout=1200)
    assert process.returncode == 0, out + errors
    return out


def kill_in_training(home: Home, log: Path, alarm: str) -> None:
    """Start a retraining, and kill it when its network is being trained."""
    before, process = set(home.run_folders()), start_retraining(log, alarm)

    def trains() -> bool:
        assert process.poll() is None, process.communicate()
        runs = [run for run in set(home.run_folders()) - before if (run / "journal.jsonl").exists()]
        events = [event for run in runs for event in journal(run)]
        return any(event["op"] == "work_started" and event["stage"] == "train" for event in events)

    until(trains)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def began(tmp_path: Path) -> tuple[RetrainRecords, LabeledRequests, RetrainRecord]:
    records, held_back = RetrainRecords(Home(tmp_path), NAME), np.arange(20) >= 14
    inputs = {"input": np.arange(80, dtype=np.float32).reshape(20, 4)}
    samples = LabeledRequests(inputs, np.arange(20) % 2, held_back, 0, 20, 20, 20)
    record = records.add(samples, "champion")
    counts = {"trained": 14, "held_back": 6, "limits": LIMITS, "config": {}}
    known = {"id": record.folder.name, "name": NAME, "champion": "c" * 64, "started_at": "2026-01-01T00:00:00+00:00"}
    record.begin(RetrainTask.model_validate(known | counts))
    return records, samples, record


@pytest.mark.parametrize("file", ["train.npz", "test.npz"])
def test_samples_that_changed_since_a_retraining_began_are_refused_and_made_anew(home: Home, began, file: str) -> None:
    records, samples, record = began
    record.require_intact()
    with np.load(record.folder / file) as arrays:
        changed = dict(arrays) | {"labels": 1 - arrays["labels"]}
    np.savez(record.folder / file, **changed)
    for run_id in (None, "run-1"):
        record.save(record.task.replace(run_id=run_id))
        with pytest.raises(StageError, match="its samples were changed or removed since it began"):
            _promote(home, record.task, record) if run_id else _finish(home, record, fresh=False)
    assert (record.result.outcome, records.unfinished()) == ("broke", None)
    records.add(samples, "champion").require_intact()


@pytest.mark.parametrize("file", ["task.json", "retrain.json"])
def test_damaged_record_of_a_retraining_is_named_in_one_line(began, file: str) -> None:
    records, _, record = began
    (record.folder / file).write_text("{")
    with pytest.raises(StageError, match=rf"{file}: damaged. Fix: remove {record.folder}, and retrain again"):
        assert [(each.result, each.task) for each in records.all()]


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_alarm_retrains_once_and_the_stream_is_predicted_again(home: Home, tmp_path: Path) -> None:
    log, environment = tmp_path / "requests", {"GAUNTLET_HOME": str(home.root)}

    def gauntlet(*words: str) -> subprocess.CompletedProcess[str]:
        return command(tmp_path, *words, **environment)

    assert (done := gauntlet("run", NAME, *sets(*QUICK, *FEW))).returncode == 0, done.stdout + done.stderr
    assert (done := gauntlet("promote", home.run_folders()[-1].name)).returncode == 0, done.stdout + done.stderr
    ask_and_label(tmp_path, 300, log)
    before, looked = accuracy(home), gauntlet("monitor", NAME, "--log", str(log), "--json")
    found = MonitorResult.model_validate_json(looked.stdout)
    assert (looked.returncode, found.verdict) == (1, "harmful")

    kill_in_training(home, log, alarm_id(found))
    assert "the champion now" in retrained(log, alarm_id(found))
    again = retrained(log, alarm_id(found))
    assert f"retrained for the alarm {alarm_id(found)} already, promoted" in again

    done = gauntlet("retrain", NAME, "--log", str(log))  # today's champion has no labeled request yet
    assert (done.returncode, "0 labeled samples" in done.stderr) == (2, True), done.stdout + done.stderr

    assert before < 0.6
    assert accuracy(home) > before + 0.2
    ledger = Ledger.of(home.root, NAME).entries()
    assert [entry.op for entry in ledger] == ["promote", "commit", "promote", "commit"]
    client = MlflowClient(home.mlflow_uri)
    aliases = {alias: str(v) for alias, v in client.get_registered_model(NAME).aliases.items()}
    assert aliases == {"champion": "2", "previous": "1"}
    [record] = RetrainRecords(home, NAME).all()
    assert (record.result.outcome, record.result.challenger) == ("promoted", ledger[2].digest)
    assert "Promoted" in record.page.read_text()
    run = client.get_run(client.get_model_version(NAME, "2").run_id)
    assert (run.data.tags["retrain.outcome"], run.data.tags["retrain.id"]) == ("promoted", record.task.id)
    assert run.data.metrics["retrain.new.gain_low"] > 0
    assert client.list_artifacts(run.info.run_id, "retraining")[0].path.endswith("retrain.html")
