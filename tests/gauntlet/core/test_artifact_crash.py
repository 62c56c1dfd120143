"""The store under violence: killed in the middle of a put, and two processes at once. Every process is a real one."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gauntlet.core.artifact import Store, sha256_of

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
