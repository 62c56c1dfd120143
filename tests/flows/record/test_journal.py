import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from flows.record.journal import Journal
from flows.record.work import ResultCache
from gauntlet.core.artifact import Store
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


def test_results_forget_work_whose_artifact_is_gone_or_changed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "made.bin").write_bytes(b"content")
    artifact = store.put(tmp_path / "made.bin")
    results = ResultCache(tmp_path / "results", store)
    results.save("key", Report(stage="x", facts=Counted(number=1), artifacts={"made": artifact}))
    found = results.load("key", Report[Counted])
    assert found.cached
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
