"""The store: named by content, whole or not there, also where a put is killed or two are made at once."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.core.artifact import Artifact, Store, open_store, sha256_of, write_atomically
from gauntlet.core.errors import ConfigError, StageError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def written(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def contents(store: Store) -> dict[str, bytes]:
    return {str(f.relative_to(store.root)): f.read_bytes() for f in store.root.rglob("*") if f.is_file()}


@given(first=st.binary(max_size=8), second=st.binary(max_size=8))
def test_digest_of_several_files_tells_them_apart_when_contents_are_swapped(
    tmp_path_factory: pytest.TempPathFactory, first: bytes, second: bytes
) -> None:
    folder = tmp_path_factory.mktemp("digest")
    files = [written(folder, "model.onnx", first), written(folder, "weights.bin", second)]
    straight = sha256_of(files)
    assert sha256_of(files[::-1]) == straight
    written(folder, "model.onnx", second), written(folder, "weights.bin", first)
    assert (sha256_of(files) == straight) == (first == second)


@given(content=st.binary(max_size=60))
def test_put_is_idempotent_when_repeated(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("put")
    store = Store(folder / "store")
    first = store.put(written(folder, "a.bin", content))
    before = contents(store)
    assert store.put(written(folder, "a.bin", content)) == first
    assert contents(store) == before
    assert store.path(first).read_bytes() == content
    assert first.size_bytes == len(content)
    assert store.is_intact(first)
    assert not (folder / "a.bin").exists()


def test_intact_is_false_when_the_file_is_truncated_changed_or_gone(store: Store, tmp_path: Path) -> None:
    artifact = store.put(written(tmp_path, "a.bin", b"0123456789"))
    for damage in (b"012345678", b"0123456780", b""):
        store.path(artifact).write_bytes(damage)
        assert not store.is_intact(artifact)
    store.path(artifact).unlink()
    assert not store.is_intact(artifact)
    assert not store.is_intact(Artifact(name="x", sha256="0" * 64, size_bytes=0, path="00/0/x"))


def test_put_never_removes_the_copy_that_another_process_has_just_stored(tmp_path: Path) -> None:
    folders: list[int] = []

    class Second(Store):
        """A store into which another process is quicker to put the same bytes."""

        def _incoming(self) -> Path:
            quicker = Store(self.root)
            artifact = quicker.put(written(tmp_path / "other", "a.bin", b"same"))
            folders.append(quicker.path(artifact).parent.stat().st_ino)
            return super()._incoming()

    store = Second(tmp_path / "store")
    artifact = store.put(written(tmp_path, "a.bin", b"same"))
    assert [store.path(artifact).parent.stat().st_ino] == folders
    assert store.is_intact(artifact)
    assert list((store.root / "incoming").iterdir()) == []


def test_put_replaces_a_damaged_copy_file_by_file(store: Store, tmp_path: Path) -> None:
    def files() -> list[Path]:
        return [written(tmp_path, "model.onnx", b"graph"), written(tmp_path, "weights.bin", b"numbers")]

    home = store.path(store.put(*files())).parent
    written(home, "weights.bin", b"zeros")
    written(home, "stray.bin", b"left by a crash")
    store.put(*files())
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {
        "model.onnx": b"graph",
        "weights.bin": b"numbers",
    }


def test_put_keeps_both_when_the_same_bytes_bear_two_names(store: Store, tmp_path: Path) -> None:
    first = store.put(written(tmp_path, "validation.npz", b"same"))
    second = store.put(written(tmp_path, "calibration.npz", b"same"))
    assert first.sha256 == second.sha256
    assert store.is_intact(first)
    assert store.is_intact(second)
    assert (store.path(first).name, store.path(second).name) == ("validation.npz", "calibration.npz")


def test_put_keeps_files_together_when_a_model_has_external_data(store: Store, tmp_path: Path) -> None:
    model, weights = written(tmp_path, "model.onnx", b"graph"), written(tmp_path, "weights.bin", b"numbers")
    artifact = store.put(model, weights)
    home = store.path(artifact).parent
    assert artifact.name == "model.onnx"
    assert artifact.size_bytes == len(b"graphnumbers")
    assert (home / "weights.bin").read_bytes() == b"numbers"
    assert store.is_intact(artifact)
    (home / "weights.bin").write_bytes(b"numberz")
    assert not store.is_intact(artifact)
    (home / "weights.bin").unlink()
    assert not store.is_intact(artifact)


def test_put_refuses_when_two_files_have_the_same_name(store: Store, tmp_path: Path) -> None:
    files = [written(tmp_path / folder, "model.onnx", b"x") for folder in ("a", "b")]
    with pytest.raises(StageError, match=r"model\.onnx: two files"):
        store.put(*files)
    assert all(file.exists() for file in files)


def test_address_of_a_shared_store_without_anything_that_opens_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gauntlet.core.artifact.kinds", lambda _: {})
    with pytest.raises(ConfigError, match="GAUNTLET_STORE=s3://models/x: nothing is installed that opens"):
        open_store(tmp_path, "s3://models/x")


MIB = 1 << 20
PUT = """
import sys
from pathlib import Path
from gauntlet.core.artifact import Store
file, root, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
content = bytes(range(256)) * 4096 * 24  # 24 MiB
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    file.write_bytes(content)
    Store(root).put(file)
print("done", flush=True)
"""


def putter(file: Path, root: Path, rounds: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PUT, str(file), str(root), str(rounds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def finished(root: Path) -> list[Path]:
    """Return the files under a final name."""
    incoming = root / "incoming"
    return [f for f in root.rglob("*") if f.is_file() and not f.is_relative_to(incoming)]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder on another file system where there is one, so that moving is copying."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        return tmp_path
    folder = shm / f"gauntlet-test-{random.getrandbits(64):x}"
    folder.mkdir()
    return folder


def test_write_that_fails_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "report.json", "\ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_put_leaves_no_partial_file_under_its_final_name_when_killed(tmp_path: Path, elsewhere: Path) -> None:
    root, file = tmp_path / "store", elsewhere / "big.bin"
    expected = 24 * MIB
    moments = random.Random(0)
    try:
        for _ in range(8):
            process = putter(file, root, rounds=1000)
            go(process)
            time.sleep(moments.uniform(0.005, 0.12))
            process.kill()
            process.communicate()
            assert process.returncode == -9
            for found in finished(root):
                assert found.stat().st_size == expected
                assert sha256_of([found]) in str(found)
        survivor = putter(file, root)
        go(survivor)
        survivor.communicate(timeout=60)
        assert survivor.returncode == 0
        assert [f.stat().st_size for f in finished(root)] == [expected]
    finally:
        file.unlink(missing_ok=True)
        if elsewhere != tmp_path:
            elsewhere.rmdir()


def test_put_stores_one_whole_copy_when_two_processes_put_the_same_bytes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for name in "ab":
        (tmp_path / name).mkdir()
    processes = [putter(tmp_path / name / "big.bin", root, rounds=4) for name in "ab"]
    for process in processes:
        go(process)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert outputs == ["done\n", "done\n"]
    assert [f.stat().st_size for f in finished(root)] == [24 * MIB]
    assert list((root / "incoming").iterdir()) == []
    again = tmp_path / "big.bin"
    again.write_bytes(finished(root)[0].read_bytes())
    assert Store(root).is_intact(Store(root).put(again))
