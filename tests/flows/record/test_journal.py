import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.record import locks
from flows.record.home import Home
from flows.record.journal import SAVED, Journal, everything_sent, open_records
from flows.record.locks import host, is_locked, locked, try_exclusive
from flows.record.work import ResultCache
from flows.recording import close_interrupted
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts
from gauntlet.core.report import Report


class Counted(Facts):
    number: float


@given(st.integers(1, 40))
def test_journal_survives_a_line_that_a_kill_cut_short(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        journal = Journal(path)
        journal.append("first")
        whole = path.stat().st_size
        journal.append("second", text="x" * 40)
        with path.open("r+b") as file:
            file.truncate(max(whole, path.stat().st_size - cut))
        journal.append("third")
        ops = [e["op"] for e in journal]
        assert ops[0] == "first"
        assert ops[-1] == "third"
        assert set(ops) <= {"first", "second", "third"}


@pytest.mark.parametrize("damaged", [b'{"oq": "end", "run": "child"}', b'{"op": "end", "ruo": "child"}', b"7"])
def test_damaged_line_of_a_journal_stops_no_command(tmp_path: Path, damaged: bytes) -> None:
    journal = Journal(tmp_path / "runs" / "run-1" / "journal.jsonl")
    for run in ("parent", "child"):
        journal.append("start", run=run)
    with journal.path.open("ab") as file:
        file.write(damaged + b"\n")
    journal.append("end", run="parent")
    assert open_records(journal.path.parent) == ["child"]
    assert not everything_sent(journal.path.parent)


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", "{}x", '{"events": null}', '{"runs": {}}'])
def test_damaged_note_of_what_was_sent_is_named_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "sent.json").write_text(content)
    with pytest.raises(StageError, match=r"sent.json: damaged. Fix: remove it, and gauntlet sync"):
        everything_sent(tmp_path)


@pytest.mark.parametrize("damage", [{}, {"config": {}}, {"config": {}, "started_at": 1}])
def test_killed_run_whose_record_is_damaged_is_closed_all_the_same(tmp_path: Path, damage: dict[str, object]) -> None:
    folder = tmp_path / "runs" / "run-1"
    journal = Journal(folder / "journal.jsonl")
    journal.append("start", run="parent", name="run-1", uri="http://127.0.0.1:9", experiment="e", tags={})
    Journal(folder / SAVED).append("opened", **damage)
    close_interrupted(Home(tmp_path))
    assert not open_records(folder)


def test_empty_variable_does_not_make_the_current_folder_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, a clean-up would remove the user's own `work` and `results`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAUNTLET_HOME", "")
    assert Home.find().root == tmp_path / ".gauntlet"


def test_results_forget_work_whose_artifact_is_gone_or_changed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "made.bin").write_bytes(b"content")
    artifact = store.put(tmp_path / "made.bin")
    results = ResultCache(tmp_path / "results", store)
    results.save("key", Report(stage="x", facts=Counted(number=1), artifacts={"made": artifact}))
    assert results.load("key", Report[Counted]).cached
    store.path(artifact).write_bytes(b"contenT")
    assert results.load("key", Report[Counted]) is None
    store.path(artifact).unlink()
    assert results.load("key", Report[Counted]) is None


def test_results_ignore_a_damaged_or_foreign_record(tmp_path: Path) -> None:
    results = ResultCache(tmp_path, Store(tmp_path / "store"))
    (tmp_path / "key.json").write_text('{"stage": "x", "facts": {"numb')
    assert results.load("key", Report[Counted]) is None
    (tmp_path / "key.json").write_text('{"stage": "x", "facts": {"other": 1}}')
    assert results.load("key", Report[Counted]) is None


def test_threads_and_processes_append_whole_lines_at_the_same_time(tmp_path: Path) -> None:
    path, text, count = tmp_path / "journal.jsonl", "x" * 20_000, 40
    code = (
        f"from pathlib import Path; from flows.record.journal import Journal; journal = Journal(Path({str(path)!r}))\n"
    )
    code += f"for _ in range({count}): journal.append('other', text={text!r})"
    other = subprocess.Popen([sys.executable, "-c", code])
    journal = Journal(path)
    with ThreadPoolExecutor(4) as threads:
        for number in range(4 * count):
            threads.submit(journal.append, "own", number=number, text=text)
    assert other.wait(timeout=60) == 0
    events = list(journal)
    assert len(path.read_bytes().splitlines()) == len(events) == 5 * count
    assert sorted(e["number"] for e in events if e["op"] == "own") == [*range(4 * count)]
    assert all(event["text"] == text for event in events)


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
    with locked(path, on_wait=lambda: pytest.fail("it waits")):
        pass


def test_lock_says_that_it_waits_and_then_gets_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = hold(path)
    waited: list[None] = []
    with locked(path, on_wait=lambda: waited.append(holder.kill())):
        assert waited == [None]
    holder.wait()


def test_link_in_place_of_a_lock_makes_no_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


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
