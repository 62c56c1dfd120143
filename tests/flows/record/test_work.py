"""Work is stored under the content that it has read, or not at all; what it waits for others is no work."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest

from flows.record import locks
from flows.record.cache_key import cache_key
from flows.record.home import Home
from flows.record.journal import WAITED, Journal, waited_s, work_clock
from flows.record.work import Work, input_files
from gauntlet.calibration.methods import MinMax
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.user_code import UserFunction
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import ArraySplit
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.data import DataConfig, DataFacts, data

Stage = Callable[..., Report[Any]]
MODEL = "m (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> { h = MatMul(x, w) y = Relu(h) }"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home, on a host where no other test is at work."""
    monkeypatch.setattr(locks, "HOST_LOCK", tmp_path / "host.lock")
    monkeypatch.setattr(locks, "NEXT_ON_HOST", tmp_path / "host.lock.next")
    return Home(tmp_path / "home")


@pytest.fixture
def arrays(tmp_path: Path) -> NpzArrays:
    """The user's samples, with as many of one class as of the other."""
    write_samples(tmp_path / "x.npz", ones=40)
    return NpzArrays(path=tmp_path / "x.npz", labels=("cat", "dog"))


def write_samples(path: Path, ones: int) -> None:
    """Write 80 samples, of which so many are of the second class; all such files have the same size."""
    inputs = np.random.default_rng(0).standard_normal((80, 3, 4, 4)).astype(np.float32)
    np.savez(path, inputs=inputs, labels=(np.arange(80) < ones).astype(np.int64))


def work_of(home: Home, config: Any, inputs: dict[str, Any], function: Stage) -> Work:
    """Return the work of a stage in a run, as the pipeline makes it."""
    key = cache_key(function, config, inputs)
    flags = {"measured": False, "reusable": True, "resumable": True}
    return Work(
        "run", home.root, "", function.__name__, None, key, **flags, function=function, config=config, inputs=inputs
    )


def data_work(home: Home, config: NpzArrays, function: Stage = data) -> Work:
    return work_of(home, config, {"files": (config.files,)}, function)


def dogs(report: Report[DataFacts]) -> int:
    return sum(counts["dog"] for counts in report.facts.images_per_class.values())


def after_a_wait(work: Work, caplog: pytest.LogCaptureFixture, meanwhile: Callable[[], None]) -> Report[Any]:
    """Return the work's report; it waits for the host, as it would for another run's benchmark."""
    reports: list[Report[Any]] = []
    thread = threading.Thread(target=lambda: reports.append(work.run()))
    with caplog.at_level("INFO", "gauntlet"), locks.host(alone=True):
        thread.start()
        while "waiting until this host is free" not in caplog.text:
            thread.join(0.01)
        meanwhile()
    thread.join()
    return reports[0]


def test_file_that_changes_during_a_wait_is_stored_under_what_was_read(
    home: Home, arrays: NpzArrays, caplog: pytest.LogCaptureFixture
) -> None:
    original = data_work(home, arrays)
    assert dogs(after_a_wait(original, caplog, lambda: write_samples(arrays.path, ones=10))) == 10
    assert data_work(home, arrays).run().cached
    write_samples(arrays.path, ones=40)
    assert data_work(home, arrays).key == original.key
    assert dogs(data_work(home, arrays).run()) == 40


def test_record_with_one_other_digit_or_of_other_work_is_not_taken(home: Home, arrays: NpzArrays) -> None:
    work = data_work(home, arrays)
    work.run()
    [record] = home.results.glob("*.json")
    intact = record.read_text()
    record.write_text(intact.replace('"dog": ', '"dog": 1'))
    assert not work.run().cached
    write_samples(arrays.path, ones=30)
    other = data_work(home, arrays)
    (home.results / f"{other.key}.json").write_text(intact)
    assert dogs(other.run()) == 30


def test_file_that_appears_during_a_wait_is_a_part_of_the_key(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "splits"
    folder.mkdir()
    for split in ("train", "test"):
        write_samples(folder / f"{split}.npz", ones=40)
    work = data_work(home, NpzArrays(path=folder, labels=("cat", "dog")))
    report = after_a_wait(work, caplog, lambda: write_samples(folder / "validation.npz", ones=10))
    assert report.facts.images["validation"] == 80
    (folder / "validation.npz").unlink()
    assert "validation" not in work.run().facts.images


def changing(change: Callable[[], None]) -> Stage:
    """Return the stage `data`, behind whose reading the files change."""

    def data_and_change(config: DataConfig, workspace: Workspace, **inputs: Any) -> Report[DataFacts]:
        report = data(config, workspace, **inputs)
        change()
        return report

    return data_and_change


def test_file_that_changes_while_the_stage_reads_it_ends_the_stage_and_nothing_is_stored(
    home: Home, arrays: NpzArrays
) -> None:
    work = data_work(home, arrays, changing(lambda: write_samples(arrays.path, ones=10)))
    with pytest.raises(StageError, match=r"x\.npz changed while the stage read it, so .* Fix: run the same command"):
        work.run()
    assert not list(home.results.glob("*"))
    assert not (home.work / work.key).exists()


def test_result_is_not_reused_when_a_file_changed_and_was_put_back(
    home: Home, arrays: NpzArrays, tmp_path: Path
) -> None:
    def replace_for_a_moment() -> None:
        aside, status = arrays.path.rename(tmp_path / "aside.npz"), arrays.path.with_name("aside.npz").stat()
        write_samples(arrays.path, ones=10)
        aside.replace(arrays.path)
        os.utime(arrays.path, ns=(status.st_atime_ns, status.st_mtime_ns))

    work = data_work(home, arrays, changing(replace_for_a_moment))
    assert not work.run().cached
    assert not work.run().cached


def test_source_code_that_changes_during_the_work_costs_no_more_than_its_place_in_the_cache(
    home: Home, tmp_path: Path, arrays: NpzArrays
) -> None:
    code = tmp_path / "nets.py"
    code.write_text("width = 8")
    work = data_work(home, arrays, changing(lambda: code.write_text("width = 16")))
    work = replace(work, inputs={"files": (arrays.path, code)})
    work = replace(work, key=cache_key(work.function, work.config, work.inputs))
    assert dogs(work.run()) == 40
    assert not list(home.results.glob("*"))


def test_content_that_is_the_same_in_a_new_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"same")
    before = input_files({"files": (path,)})
    path.rename(tmp_path / "aside")
    path.write_bytes(b"same")
    assert input_files({"files": (path,)}) != before
    assert input_files({"files": (path,)})[str(path)].sha256 == before[str(path)].sha256


def test_calibration_follows_the_file_that_its_reader_loads(home: Home, workspace: Callable[..., Workspace]) -> None:
    space = workspace(home.store)
    proto = onnx_text.model(MODEL)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, space.folder / "model.onnx")
    samples = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    np.save(space.folder / "mine.npy", samples)
    (space.folder / "my_reader.py").write_text(
        f"import numpy as np\ndef batches():\n    return [{{'x': np.load({str(space.folder / 'mine.npy')!r})}}]\n"
    )
    config = CalibrateConfig(reader=UserFunction(function="my_reader:batches", code_folder=space.folder))
    model = space.store_file(space.folder / "model.onnx")
    test = space.store_file(ArraySplit({"x": samples + 1}).save(space.folder, "test"))
    inputs = {"model": model, "calibration": None, "test": test, "methods": (MinMax(),), "files": (config.files,)}
    work = work_of(home, config, inputs, calibrate)
    first = work.run().artifacts["ranges"]
    assert work.run().artifacts["ranges"] == first
    np.save(space.folder / "mine.npy", 100 * samples)
    assert work.run().artifacts["ranges"] != first


def test_wait_for_the_host_is_written_down_and_is_no_work(
    home: Home, arrays: NpzArrays, caplog: pytest.LogCaptureFixture
) -> None:
    work, journal = data_work(home, arrays), Journal(home.runs / "run" / "journal.jsonl")
    clock, start = work_clock(journal), monotonic()
    before = clock()
    after_a_wait(work, caplog, lambda: None)
    (wait,) = (event for event in journal if event["op"] == WAITED)
    assert start < wait["began"] < wait["ended"] < monotonic()
    assert clock() - before <= monotonic() - start - (wait["ended"] - wait["began"])


def test_waits_at_the_same_time_count_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for began, ended in ((10, 20), (30, 31), (12, 18), (15, 22)):
        journal.append(WAITED, began=began, ended=ended)
    assert waited_s(journal) == 13


def resuming(config: DataConfig, workspace: Workspace, *, files: tuple[object, ...] = ()) -> Report[DataFacts]:
    """Continue from a checkpoint, where a killed run left one."""
    checkpoint = workspace.folder / "checkpoint.json"
    if checkpoint.exists():
        json.loads(checkpoint.read_text())
    return data(config, workspace, files=files)


def test_damaged_checkpoint_ends_one_attempt_and_not_every_one(home: Home, arrays: NpzArrays) -> None:
    work = data_work(home, arrays, resuming)
    folder = home.work / work.key
    folder.mkdir(parents=True)
    (folder / "checkpoint.json").write_text('{"epochs": 3')
    with pytest.raises(ValueError, match="Expecting ','"):
        work.run()
    assert dogs(work.run()) == 40
    assert not folder.exists()
