import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.record import locks
from flows.record.locks import host, is_locked, locked, try_exclusive

HOLD = "import sys, time; from pathlib import Path; from flows.record.locks import locked\n"
HOLD += "with locked(Path(sys.argv[1]), shared=len(sys.argv) > 2): print('held', flush=True); time.sleep(60)"


def hold(path: Path, *shared: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, path, *shared], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_is_free_as_soon_as_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = hold(path)
    assert is_locked(path)
    holder.kill()
    holder.wait()
    waited: list[str] = []
    with locked(path, on_wait=lambda: waited.append("waited")):
        assert not waited


def test_lock_says_that_it_waits_and_then_gets_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = hold(path)
    waited: list[float] = []

    def on_wait() -> None:
        waited.append(time.monotonic())
        holder.kill()

    with locked(path, on_wait=on_wait):
        assert len(waited) == 1
    holder.wait()


def test_shared_lock_becomes_exclusive_only_for_the_last_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = hold(path, "shared")
    with locked(path, shared=True) as descriptor:
        assert not try_exclusive(descriptor)
        other.kill()
        other.wait()
        assert try_exclusive(descriptor)


def test_benchmark_has_its_turn_before_work_that_asks_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HOST_LOCK", tmp_path / "host.lock")
    monkeypatch.setattr(locks, "NEXT_ON_HOST", tmp_path / "host.lock.next")
    order: list[str] = []
    waiting = {name: threading.Event() for name in ("benchmark", "work")}

    def enter(name: str) -> None:
        with host(alone=name == "benchmark", on_wait=waiting[name].set):
            order.append(name)

    threads = [threading.Thread(target=enter, args=(name,)) for name in waiting]
    with host(alone=False):
        for thread, told in zip(threads, waiting.values(), strict=True):
            thread.start()
            assert told.wait(timeout=60)
        assert order == []
    for thread in threads:
        thread.join(timeout=60)
    assert order == ["benchmark", "work"]
    with host(alone=False), host(alone=False):  # works share it
        pass
