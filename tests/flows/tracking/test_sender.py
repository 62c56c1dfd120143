"""What the tracking server refuses is noted and skipped; one that hangs is not waited for."""

import json
import os
import signal
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import reported_runs
from harness import quick_config
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name

from flows.cli.main import main
from flows.record.home import Home
from flows.record.journal import Journal, everything_sent
from flows.servers.local_servers import start_mlflow, stop
from flows.servers.ports import Port
from flows.tracking.events import TrackingEvents
from flows.tracking.metric_names import legal
from flows.tracking.sender import PARENT, PATIENCE_S, Sender
from flows.tracking.server import experiment_id
from gauntlet.core.errors import without_password
from gauntlet.core.run_report import CandidateEntry

pytestmark = pytest.mark.slow
Append = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "runs" / "run-1"


def sender_of(folder: Path, uri: str, experiment: str = "first") -> tuple[Sender, Append]:
    """A sender of a run that has started, and how to append to its journal."""
    journal = Journal(folder / "journal.jsonl")
    journal.append("start", run=PARENT, name="run-1", uri=uri, experiment=experiment, tags={"stage": "pipeline"})
    return Sender(Home(folder.parents[1]), folder), journal.append


@pytest.fixture
def local(folder: Path) -> tuple[Sender, Append, MlflowClient]:
    uri = f"sqlite:///{folder.parents[1] / 'mlflow.db'}"
    folder.mkdir(parents=True)
    return *sender_of(folder, uri), MlflowClient(uri)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    port = Port.take()
    process = psutil.Process(start_mlflow(Home(tmp_path / "server"), port).pid)
    yield port.address, process
    stop(process)


@given(st.text(max_size=300))
def test_legal_name_is_one_that_mlflow_takes(name: str) -> None:
    for validate in (_validate_metric_name, _validate_param_name, _validate_tag_name):
        validate(legal(name))


@pytest.mark.parametrize("name", ["quality.top1", "latency.b1.p50_ms", "gate.export.time: mean/max"])
def test_legal_name_stays(name: str) -> None:
    assert legal(name) == name


def test_refused_event_is_noted_with_its_reason_and_the_next_ones_are_sent(
    local: tuple[Sender, Append, MlflowClient], folder: Path
) -> None:
    sender, append, client = local
    append("params", run=PARENT, params={"threads": 1})
    append("params", run=PARENT, params={"threads": 2})  # a parameter does not change
    append("file", run=PARENT, path="gone.json", folder="report")
    append("metrics", run="a child of nobody", metrics={"x": 1.0}, step=0)
    append("metrics", run=PARENT, metrics={"speedup.precision=bf16+x": 1.5}, step=0)
    append("end", run=PARENT, status="FINISHED", time_ms=0)
    assert sender.send()
    assert everything_sent(folder)
    refused = json.loads((folder / "sent.json").read_text())["refused"]
    assert [(event["op"], event["run"]) for event in refused] == [
        ("params", PARENT), ("file", PARENT), ("metrics", "a child of nobody"),
    ]  # fmt: skip
    changed, gone, orphan = (event["reason"] for event in refused)
    assert "threads" in changed
    assert "gone.json" in gone
    assert orphan == "the run a child of nobody was refused"
    [run] = client.search_runs([client.get_experiment_by_name("first").experiment_id])
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"speedup.precision_bf16_x": 1.5})


def test_run_without_mlflow_waits_in_its_journal_for_gauntlet_sync(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sender, _ = sender_of(folder, "")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "mlflow", None)
        without.setenv("GAUNTLET_HOME", str(folder.parents[1]))
        assert not sender.send()
        assert everything_sent(folder)  # nothing waits: `gauntlet clean` may remove the run
        assert main(["sync"]) == 2
    assert "this needs mlflow, which is not installed; install it with: make onnx" in capsys.readouterr().err
    assert not everything_sent(folder)
    assert sender.send()
    assert everything_sent(folder)


def test_server_that_was_named_is_not_forgotten_without_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sender_of(folder, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert not everything_sent(folder)


def test_password_of_the_server_is_stored_nowhere_and_still_used(
    server: tuple[str, psutil.Process], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = server[0].replace("://", "://me:secret@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    journal = Journal(folder / "journal.jsonl")
    events = TrackingEvents(Home(folder.parents[1]), quick_config(), journal)
    events.opened("run-1")
    assert everything_sent(folder)
    assert next(iter(journal))["uri"] == uri.replace("secret", "***")
    assert "secret" not in str(events.run_url())
    files = [path for path in folder.parents[1].rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"secret" in path.read_bytes()]


@pytest.mark.parametrize("sent", [True, False])
def test_files_of_rejected_candidates_are_sent_unless_switched_off(folder: Path, sent: bool) -> None:
    config, journal = quick_config(f"tracking.rejected_files={str(sent).lower()}"), Journal(folder / "journal.jsonl")
    events, file = TrackingEvents(Home(folder.parents[1]), config, journal), reported_runs.artifact("slow.onnx", 9)
    events.opened("run-1")
    slow = CandidateEntry(name="slow", parent="fp32", status="rejected", reason="slower", artifact=file)
    events.candidate_opened(slow)
    (folder / "report.md").write_text("it passed")
    events.closed(reported_runs.run(verdict="passed", candidates=(slow,)))
    assert [e["run"] for e in journal if e["op"] == "artifact"] == (["slow"] if sent else [])


def test_password_in_an_error_is_masked() -> None:
    error = "GET http://me:se:cret@host:5000/api and postgresql://a:b@db/mlflow failed at 12:30 @noon"
    masked = "GET http://me:***@host:5000/api and postgresql://a:***@db/mlflow failed at 12:30 @noon"
    assert without_password(error) == masked


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "/etc", "a/b"])
def test_experiment_stays_in_the_home(local: tuple[Sender, Append, MlflowClient], name: str) -> None:
    sender, _, client = local
    experiment_id(sender.home, client, name)
    location = urllib.parse.unquote(urllib.parse.urlsplit(client.get_experiment_by_name(name).artifact_location).path)
    assert Path(location).resolve().parent == sender.home.root / "mlartifacts"


@pytest.mark.nightly
def test_server_that_hangs_is_waited_for_ten_seconds_in_all(server: tuple[str, psutil.Process], folder: Path) -> None:
    uri, process = server
    folder.mkdir(parents=True)
    sender, append = sender_of(folder, uri)
    assert sender.send()
    family = [process, *process.children(recursive=True)]
    for member in family:
        os.kill(member.pid, signal.SIGSTOP)  # it still accepts connections, and never responds
    try:
        for step in range(20):
            append("metrics", run=PARENT, metrics={"loss": 1.0}, step=step)
            assert not sender.send()
        assert 0 < sender.waited_s <= PATIENCE_S
    finally:
        for member in family:
            os.kill(member.pid, signal.SIGCONT)
    assert Sender(sender.home, folder).send()  # as `gauntlet sync` does


def test_runs_of_a_terminal_and_of_the_platform_share_one_experiment_whoever_comes_first(
    server: tuple[str, psutil.Process], tmp_path: Path
) -> None:
    home, client = Home(tmp_path / "server"), MlflowClient(server[0])
    (home.root / "report.md").write_text("it passed")
    for order in (("terminal", "page"), ("page", "terminal")):
        for name in order:
            uri = client.tracking_uri if name == "page" else home.mlflow_uri
            sender, append = sender_of(home.root / "runs" / f"{name}-{order[0]}", uri, order[0])
            append("file", run=PARENT, path="report.md", folder="report")
            assert sender.send()
            assert not json.loads(sender.state_path.read_text())["refused"]
        runs = client.search_runs([client.get_experiment_by_name(order[0]).experiment_id])
        files = [Path(client.download_artifacts(run.info.run_id, "report/report.md")) for run in runs]
        assert [file.read_text() for file in files] == ["it passed"] * 2
