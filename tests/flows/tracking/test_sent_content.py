"""MLflow gets each large file once from a home: a second run links to it, and what the server has lost is sent again.

`gauntlet clean` takes removed runs out of MLflow, with their files, as far as nothing else needs them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_text
import pytest
from mlflow import MlflowClient

from flows.cli.main import main
from flows.record.home import Home
from flows.record.journal import Journal, everything_sent
from flows.tracking import replay
from flows.tracking.replay import SentContent
from flows.tracking.sender import PARENT, Sender
from flows.tracking.server import tracking_client
from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import signature_from_graph

pytestmark = pytest.mark.slow
Journaled = tuple[Sender, Journal]
CPU = ["CPUExecutionProvider"]
OWN_BYTES = 100_000


@pytest.fixture(autouse=True)
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the few bytes of these tests for large files."""
    monkeypatch.setattr(replay, "LINKED_FROM_BYTES", 0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def client(home: Home) -> MlflowClient:
    return tracking_client(home, home.mlflow_uri)


@pytest.fixture
def begin(home: Home) -> Callable[..., Journaled]:
    def start(name: str, own: Home = home) -> Journaled:
        journal = Journal(own.runs / name / "journal.jsonl")
        where = {"uri": home.mlflow_uri, "experiment": "first"}
        journal.append("start", run=PARENT, name=name, tags={"stage": "pipeline"}, **where)
        return Sender(own, own.runs / name), journal

    return start


@pytest.fixture
def weights(home: Home, tmp_path: Path) -> Artifact:
    """One artifact of two files."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    (tmp_path / "model.pt.data").write_bytes(b"more weights")
    return home.store.put(tmp_path / "model.pt", tmp_path / "model.pt.data")


def send_artifact(journal: Journal, home: Home, artifact: Artifact, folder: str, run: str = PARENT) -> None:
    path = str(home.store.path(artifact).relative_to(home.root))
    what = {"sha256": artifact.sha256, "size_bytes": artifact.size_bytes}
    journal.append("artifact", run=run, path=path, folder=folder, **what)


def stored_model(home: Home, folder: Path) -> Artifact:
    model = onnx_text.model("g (float[n,3] x) => (float[n,2] y) <float[3,2] w> { y = MatMul(x, w) }")
    signature_from_graph(model).write(model)
    onnx.save(model, folder / "model.onnx")
    return home.store.put(folder / "model.onnx")


def send_model(journal: Journal, home: Home, artifact: Artifact, run: str = PARENT, **params: str) -> None:
    """Send a model; the server finds it again by the parameter `sha256`."""
    path = str(home.store.path(artifact).relative_to(home.root))
    content = {"sha256": artifact.sha256, "params": params, "providers": CPU}
    journal.append("model", run=run, name="g-fp32", path=path, tags={}, **content)


def run_of(client: MlflowClient, name: str) -> str:
    experiment = client.get_experiment_by_name("first").experiment_id
    [run] = client.search_runs([experiment], f"attributes.run_name = '{name}'")
    return str(run.info.run_id)


def files(client: MlflowClient, run: str, folder: str) -> list[str]:
    return sorted(Path(file.path).name for file in client.list_artifacts(run, folder))


def test_artifact_is_sent_whole_once_and_linked_from_then_on(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], weights: Artifact, tmp_path: Path
) -> None:
    for name in ("run-1", "run-2"):
        sender, journal = begin(name)
        send_artifact(journal, home, weights, "artifacts/train/model")
        assert sender.send()
    first, second = run_of(client, "run-1"), run_of(client, "run-2")
    assert files(client, first, "artifacts/train/model") == ["model.pt", "model.pt.data"]
    assert files(client, second, "artifacts/train/model") == ["model.pt.link.json"]
    link = client.download_artifacts(second, "artifacts/train/model/model.pt.link.json", str(tmp_path))
    assert json.loads(Path(link).read_text()) == {
        "sha256": weights.sha256,
        "size_bytes": weights.size_bytes,
        "uri": f"runs:/{first}/artifacts/train/model/model.pt",
    }
    assert len([*home.root.glob("mlartifacts/**/model.pt")]) == 1


def test_small_file_is_in_every_run_that_has_it(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that is the same as yesterday's is seen on today's page, too."""
    monkeypatch.undo()
    (tmp_path / "drawing.svg").write_bytes(b"lines")
    drawing = home.store.put(tmp_path / "drawing.svg")
    for name in ("run-1", "run-2"):
        sender, journal = begin(name)
        send_artifact(journal, home, drawing, "artifacts/drawing")
        assert sender.send()
        assert files(client, run_of(client, name), "artifacts/drawing") == ["drawing.svg"]


def test_same_content_of_another_name_is_a_link(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], tmp_path: Path
) -> None:
    sender, journal = begin("run-1")
    for name in ("first.npz", "second.npz"):
        (tmp_path / name).write_bytes(b"numbers")
        send_artifact(journal, home, home.store.put(tmp_path / name), f"artifacts/{name}")
    assert sender.send()
    run = run_of(client, "run-1")
    assert files(client, run, "artifacts/first.npz") == ["first.npz"]
    assert files(client, run, "artifacts/second.npz") == ["second.npz.link.json"]


def test_artifact_that_is_sent_again_after_a_kill_stays_where_it_is(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], weights: Artifact
) -> None:
    sender, journal = begin("run-1")
    send_artifact(journal, home, weights, "artifacts/train/model")
    assert sender.send()
    sender.state_path.write_text(json.dumps({**json.loads(sender.state_path.read_text()), "events": 0}))
    assert sender.send()
    assert everything_sent(sender.folder)
    assert files(client, run_of(client, "run-1"), "artifacts/train/model") == ["model.pt", "model.pt.data"]


@pytest.mark.parametrize("damage", ["", "{", "[1]"])
def test_damaged_note_of_sent_content_loses_nothing(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], weights: Artifact, damage: str
) -> None:
    sender, journal = begin("run-1")
    SentContent(home, client.tracking_uri).add("other", run_id="none")
    next(home.sent.glob("*.json")).write_text(damage)
    send_artifact(journal, home, weights, "artifacts/train/model")
    assert sender.send()
    assert json.loads(sender.state_path.read_text())["refused"] == []
    assert files(client, run_of(client, "run-1"), "artifacts/train/model") == ["model.pt", "model.pt.data"]


def test_content_that_the_server_lost_is_sent_again(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], weights: Artifact
) -> None:
    for name in ("run-1", "run-2"):
        sender, journal = begin(name)
        send_artifact(journal, home, weights, "artifacts/train/model")
        assert sender.send()
        client.delete_run(run_of(client, name))
    sender, journal = begin("run-3")
    send_artifact(journal, home, weights, "artifacts/train/model")
    assert sender.send()
    assert files(client, run_of(client, "run-3"), "artifacts/train/model") == ["model.pt", "model.pt.data"]


def test_model_is_sent_once_and_linked_to_each_run_that_has_it(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], tmp_path: Path
) -> None:
    artifact = stored_model(home, tmp_path)
    for name in ("run-1", "run-2"):
        sender, journal = begin(name)
        journal.append("start", run="fp32", name=f"{name}-fp32", tags={"stage": "candidate"})
        send_model(journal, home, artifact, "fp32")
        journal.append("metrics", run="fp32", metrics={"quality.top1": 0.9}, step=0)
        assert sender.send()
        assert json.loads(sender.state_path.read_text())["refused"] == []
    [found] = client.search_logged_models([client.get_experiment_by_name("first").experiment_id])
    first, second = run_of(client, "run-1-fp32"), run_of(client, "run-2-fp32")
    assert found.source_run_id == first
    assert [output.model_id for output in client.get_run(second).outputs.model_outputs] == [found.model_id]
    assert client.get_run(second).data.metrics == {"quality.top1": 0.9}
    client.delete_logged_model(found.model_id)
    sender, journal = begin("run-3")
    send_model(journal, home, artifact)
    assert sender.send()
    assert len(client.search_logged_models([client.get_experiment_by_name("first").experiment_id])) == 1


def test_link_whose_response_was_lost_is_sent_once(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, link = stored_model(home, tmp_path), MlflowClient.log_outputs

    def lose(*arguments: Any) -> None:
        link(*arguments)
        raise ConnectionError("no response")

    for name in ("run-1", "run-2"):
        sender, journal = begin(name)
        send_model(journal, home, artifact)
        with monkeypatch.context() as patch:
            if name == "run-2":
                patch.setattr(MlflowClient, "log_outputs", lose)
            assert sender.send() == (name == "run-1")
        assert sender.send()
    assert len(client.get_run(run_of(client, "run-2")).outputs.model_outputs) == 1


@pytest.mark.parametrize("killed", [False, True])
def test_model_that_a_kill_left_incomplete_is_removed(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], tmp_path: Path, killed: bool
) -> None:
    """A server that is killed when it has created a model, before it replies, is asked to create it again."""
    artifact = stored_model(home, tmp_path)
    sender, journal = begin("run")
    assert sender.send()
    place, run = client.get_experiment_by_name("first").experiment_id, run_of(client, "run")
    if killed:
        client.create_logged_model(place, "g-fp32", run, params={"sha256": artifact.sha256})
        client.create_logged_model(place, "another", run)
    send_model(journal, home, artifact, sha256=artifact.sha256)
    assert sender.send()
    found = {one.name: str(one.status) for one in client.search_logged_models([place])}
    assert found == {"g-fp32": "READY"} | ({"another": "PENDING"} if killed else {})
    assert len(client.search_logged_models([place])) == 1 + killed


def test_model_that_another_home_has_sent_is_linked(
    home: Home, client: MlflowClient, begin: Callable[..., Journaled], tmp_path: Path
) -> None:
    for own in (home, Home(tmp_path / "another")):
        sender, journal = begin(f"run-of-{own.root.name}", own)
        artifact = stored_model(own, tmp_path)
        send_model(journal, own, artifact, sha256=artifact.sha256)
        assert sender.send()
    [found] = client.search_logged_models([client.get_experiment_by_name("first").experiment_id])
    assert found.source_run_id == run_of(client, "run-of-home")
    [output] = client.get_run(run_of(client, "run-of-another")).outputs.model_outputs
    assert output.model_id == found.model_id


def bytes_of(home: Home) -> int:
    return sum(file.stat().st_size for file in home.root.glob("mlartifacts/**/*") if file.is_file())


@pytest.fixture
def three(home: Home, begin: Callable[..., Journaled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Three runs, each with a file of its own; run-3 links to a file and the model of run-1. The bytes after each."""
    pytest.importorskip("wings.housekeeping")
    monkeypatch.setenv("GAUNTLET_HOME", str(home.root))
    model, sizes = stored_model(home, tmp_path), []
    for name in ("run-1", "run-2", "run-3"):
        sender, journal = begin(name)
        (tmp_path / "own.npz").write_bytes(name.encode() * OWN_BYTES)
        send_artifact(journal, home, home.store.put(tmp_path / "own.npz"), "artifacts/own")
        if name != "run-2":
            send_artifact(journal, home, model, "artifacts/model")
            journal.append("start", run="fp32", name=f"{name}-fp32", tags={"stage": "candidate"})
            send_model(journal, home, model, "fp32")
        assert sender.send()
        sizes.append(bytes_of(home))
    return sizes


def test_cleaned_runs_leave_mlflow_with_their_files_as_soon_as_no_kept_run_needs_them(
    home: Home, client: MlflowClient, three: list[int], tmp_path: Path
) -> None:
    assert main(["clean", "--keep-runs", "1", "--dry-run"]) == 0
    assert main(["clean", "--keep-runs", "2"]) == 0  # run-1, which has what run-3 links to
    assert bytes_of(home) == three[-1]
    assert main(["clean", "--keep-runs", "1"]) == 0
    assert three[-1] - bytes_of(home) == three[1] - three[0] >= OWN_BYTES
    first = run_of(client, "run-1")
    assert client.get_run(first).data.tags["gauntlet.removed"] == "true"
    assert Path(client.download_artifacts(first, "artifacts/model/model.onnx", str(tmp_path))).exists()
    [output] = client.get_run(run_of(client, "run-3-fp32")).outputs.model_outputs
    assert [*home.root.glob(f"mlartifacts/**/{output.model_id}/artifacts/model.onnx")]
    assert main(["clean", "--keep-runs", "0"]) == 0
    assert bytes_of(home) == 0


def test_run_of_a_registered_model_and_files_of_a_copied_home_stay(
    home: Home, client: MlflowClient, three: list[int], tmp_path: Path
) -> None:
    names, remove_records = (
        ["run-1", "run-2", "run-3"],
        pytest.importorskip("wings.housekeeping.old_records").remove_records,
    )
    shutil.copytree(home.root, tmp_path / "copy")
    assert remove_records(Home(tmp_path / "copy"), names) == 0
    assert remove_records(home, names, dry_run=True) == three[-1]
    client.create_registered_model("digits")
    run = run_of(client, "run-2")
    client.create_model_version("digits", f"runs:/{run}/artifacts/own", run)
    assert remove_records(home, names) == three[-1] - (three[1] - three[0])
