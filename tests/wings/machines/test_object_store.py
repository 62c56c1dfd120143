"""The object store against a real server, in memory, and as a folder that machines mount."""

import os
import threading
from pathlib import Path

import pytest
from object_server import BUCKET, MIB, ObjectServer, machine, made

from gauntlet.core.artifact import Artifact, Store, open_store
from gauntlet.core.errors import ConfigError
from wings.machines.library import object_store
from wings.machines.library.object_store import MissingArtifact
from wings.machines.library.shared_cleanup import no_run_in_progress, plan_shared_cleanup


def test_what_one_machine_puts_another_one_gets(address: str, tmp_path: Path) -> None:
    here, there = machine(address, tmp_path / "a"), machine(address, tmp_path / "b")
    stored = here.put(made(tmp_path), made(tmp_path, "model.onnx.data", os.urandom(9 * MIB)))
    assert stored == Store(tmp_path / "plain").put(
        *(made(tmp_path, f.name, f.read_bytes()) for f in files(here, stored))
    )
    assert there.is_intact(stored)
    assert [f.read_bytes() for f in files(there, stored)] == [f.read_bytes() for f in files(here, stored)]
    assert not list((tmp_path / "b" / "incoming").iterdir())


def files(store: Store, artifact: Artifact) -> list[Path]:
    return sorted(store.path(artifact).parent.iterdir())


def test_same_content_is_sent_once(server: ObjectServer, tmp_path: Path) -> None:
    for name in ("a", "b"):
        machine(f"s3://{BUCKET}/once", tmp_path / name).put(made(tmp_path))
    assert len([path for path in server.requests("PUT") if "/once/store/" in path]) == 1


def test_artifact_that_is_nowhere_is_not_intact(address: str, tmp_path: Path) -> None:
    artifact = Store(tmp_path / "elsewhere").put(made(tmp_path))
    store = machine(address, tmp_path / "a")
    assert not store.is_intact(artifact)
    with pytest.raises(MissingArtifact, match=r"is not in .*a, nor in .*Fix: run the same command again"):
        store.path(artifact)


def test_damaged_copy_of_this_machine_is_named_and_fetched_again(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = machine(address, tmp_path / "a")
    artifact = store.put(made(tmp_path))
    place = store.path(artifact)
    place.write_bytes(b"another")
    assert store.path(artifact).read_bytes() == b"weights"
    assert f"{place} is damaged" in caplog.text


def test_damaged_object_is_named_removed_and_put_again(address: str, tmp_path: Path) -> None:
    import obstore

    here, there = machine(address, tmp_path / "a"), machine(address, tmp_path / "b")
    artifact = here.put(made(tmp_path))
    obstore.put(here.client, f"store/{artifact.path}", b"weighty")
    with pytest.raises(MissingArtifact) as error:
        there.path(artifact)
    assert f"{address}/store/{artifact.path} is damaged" in str(error.value)
    assert not (there.root / artifact.path).exists()
    assert here.is_intact(artifact)  # and so sends it again
    assert there.path(artifact).read_bytes() == b"weights"


def test_artifact_without_its_main_file_is_not_there(address: str, tmp_path: Path) -> None:
    here, there = machine(address, tmp_path / "a"), machine(address, tmp_path / "b")
    artifact = here.put(made(tmp_path), made(tmp_path, "model.onnx.data"))
    here.delete(f"store/{artifact.path}")  # as if it was killed after it had sent the weights
    assert not there.is_intact(artifact)
    assert here.is_intact(artifact)
    assert there.is_intact(artifact)


def test_artifact_that_a_killed_clean_up_has_half_removed_is_sent_again(address: str, tmp_path: Path) -> None:
    here, there = machine(address, tmp_path / "a"), machine(address, tmp_path / "b")
    artifact = here.put(made(tmp_path), made(tmp_path, "model.onnx.data"))
    here.delete(f"store/{artifact.path}.data")
    assert here.is_intact(artifact)
    assert there.is_intact(artifact)


def test_no_word_in_the_name_of_a_model_is_taken_for_an_error(address: str, tmp_path: Path) -> None:
    artifact = machine(address, tmp_path / "a").put(made(tmp_path, "redirect.onnx"))
    assert machine(address, tmp_path / "b").path(artifact).read_bytes() == b"weights"


def test_store_without_an_address_is_a_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path, "")
    assert type(store) is Store
    store.publish("results/a.json", "{}")
    assert store.published("results/a.json") is None


def test_records_are_published_whole(address: str, tmp_path: Path) -> None:
    here, there = machine(address, tmp_path / "a"), machine(address, tmp_path / "b")
    assert there.published("results/a.json") is None
    for text in ("{}", '{"a": 1}'):
        here.publish("results/a.json", text)
        assert there.published("results/a.json") == text.encode()


def test_run_waits_until_a_clean_up_of_another_machine_has_ended(address: str, tmp_path: Path) -> None:
    here, there = machine(address, tmp_path / "a"), machine(address, tmp_path / "b")
    started, ended = threading.Event(), []

    def run() -> None:
        with here.in_use("one"):
            ended.append(cleaning.is_set())
        started.set()

    cleaning = threading.Event()
    with there.lease("clean-1"):
        waiting = threading.Thread(target=run)
        waiting.start()
        while there.leases("run-") != ["run-one"]:
            assert waiting.is_alive()
        cleaning.set()
    assert started.wait(60)
    assert ended == [True]
    assert there.objects("leases") == []


@pytest.mark.parametrize("record", ["", '{"run_id": "a", "ho', '{"version": 2}'])
def test_clean_up_removes_nothing_while_a_record_of_a_run_cannot_be_read(
    address: str, tmp_path: Path, record: str
) -> None:
    store = machine(address, tmp_path / "one")
    artifact = store.put(made(tmp_path))
    store.publish("runs/20260101-a.json", record)
    with no_run_in_progress(store), pytest.raises(ConfigError, match=r"runs/20260101-a\.json: not a record of a run"):
        plan_shared_cleanup(store)
    assert machine(address, tmp_path / "two").is_intact(artifact)


def test_lease_of_a_killed_process_expires(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = machine(address, tmp_path)
    store.publish("leases/run-killed", "")
    while True:  # until the server's clock, which may count whole seconds, has moved on
        with store.lease("clean-1"):
            times = {one["last_modified"] for one in store.objects("leases")}
            assert store.leases("run-") == ["run-killed"]
            if len(times) == 2:
                monkeypatch.setattr(object_store, "LIVE_S", (max(times) - min(times)).total_seconds())
                assert store.leases("run-") == []
                break
