"""The request log is read as it was written, and a damaged file is named; which labeled requests are usable."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from monitored_bundles import images, log_requests
from served_bundles import brightness_bundle

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import StageError
from gauntlet.datasets.splits import read_npz_split
from gauntlet.request_log.log_format import pack, unpack
from serving.protocol import Feedback
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.labeled_requests import LabeledRequests, _copies, read_labeled_requests
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory

VERSION = "a" * 12


def test_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "requests-000001.sqlite").write_bytes(b"no database" * 100)
    log = RequestLogReader(tmp_path)
    for read in (lambda: list(log.requests("1")), lambda: log.end("request"), lambda: log.inputs((1, 1))):
        with pytest.raises(StageError, match=r"requests-000001.sqlite: it cannot be read: .*move it away"):
            read()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("request", "outputs", b"none"),
        ("request", "outputs", b'[["y", "<f4", [1, 3]]]\n1'),
        ("request", "inputs", b"\n"),
        ("request", "statistics", b'[["y", "no type", [1]]]\n'),
        ("feedback", "labels", "[1"),
        ("feedback", "labels", "5"),
    ],
)
def test_damaged_row_is_named(tmp_path: Path, bundle: Path, table: str, column: str, value: object) -> None:
    log_requests(tmp_path / "log", bundle, images(1, 3))
    send_labels(tmp_path / "log", [(f"r-{i}", (0,)) for i in range(3)])
    for file in (tmp_path / "log").glob("*.sqlite"):
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"UPDATE {table} SET {column} = ? WHERE id = 2", (value,))
    log, opened = RequestLogReader(tmp_path / "log"), Bundle.open(bundle)
    with pytest.raises(StageError, match=r"requests-\d+.sqlite: row 2 is damaged \(.*move the file away"):
        MonitorHistory.empty(5).updated(log, opened.digest[:12], opened.contract.signature)


def test_label_below_every_integer_of_an_array_is_of_no_class(tmp_path: Path, bundle: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(1, 2))
    huge = Feedback.model_validate({"request_id": "r-0", "labels": [-(10**30)]})  # which the server accepts
    send_labels(tmp_path / "log", [("r-0", tuple(huge.labels)), ("r-1", (2,))])
    log, opened = RequestLogReader(tmp_path / "log"), Bundle.open(bundle)
    history = MonitorHistory.empty(5).updated(log, opened.digest[:12], opened.contract.signature)
    assert history.labels.tolist() == [-1, 2]
    assert read(tmp_path / "log", bundle).labels.tolist() == [2]


def test_arrays_of_every_type_come_back() -> None:
    arrays = {
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(7, np.int64),
        "texts": np.array(["a", "näh"], object),
        "none": np.zeros((0, 4), np.float16),
        "flags": np.array([[True], [False]]),
    }
    found = unpack(pack(arrays))
    assert [*found] == [*arrays]
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return brightness_bundle(tmp_path / "b")


def read(log: Path, bundle: Path, share: float = 0.3) -> LabeledRequests:
    opened = Bundle.open(bundle)
    return read_labeled_requests(RequestLogReader(log), opened.digest[:12], opened.contract.signature, share)


def send_labels(log: Path, labels: Sequence[tuple[str, tuple[int | str, ...]]]) -> None:
    writer = RequestLog(RequestLogConfig(folder=log, inputs="all"))
    for request_id, classes in labels:
        assert writer.add_feedback(request_id, classes)
    writer.close()


def test_only_labeled_requests_with_inputs_are_used(tmp_path: Path, bundle: Path) -> None:
    given = images(1, 30)
    log_requests(tmp_path / "log", bundle, given, wrong=[False] * 30)
    log_requests(tmp_path / "log", bundle, images(2, 5), name="unlabeled")
    log_requests(tmp_path / "log", bundle, images(3, 4), name="statistics", wrong=[False] * 4, keep="statistics")
    found = read(tmp_path / "log", bundle)
    assert (found.requests, found.labeled, found.usable) == (39, 34, 30)
    assert np.array_equal(found.inputs["image"], given["image"])
    assert found.held_back.tolist() == [False] * 21 + [True] * 9


def test_labeled_samples_of_any_input_s_name_are_read_as_they_were(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    samples = LabeledRequests({"file": values, "labels": -values}, np.array([1, 0, 1]), np.zeros(3, bool), 0, 3, 3, 3)
    samples.save(tmp_path / "train.npz", np.array([True, False, True]))
    split = read_npz_split(tmp_path / "train.npz")
    assert {name: array.tolist() for name, array in split.inputs.items()} == {
        "file": [[0, 1], [4, 5]],
        "labels": [[0, -1], [-4, -5]],
    }
    assert split.labels is not None
    assert split.labels.tolist() == [1, 1]


def test_first_labels_count_and_odd_ones_are_left_out(tmp_path: Path, bundle: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(1, 4))
    send_labels(tmp_path / "log", [("r-0", (2,)), ("r-0", (1,)), ("r-1", (1, 1)), ("r-2", (3,)), ("gone", (0,))])
    found = read(tmp_path / "log", bundle)
    assert (found.labeled, found.usable, found.labels.tolist()) == (3, 1, [2])


def test_labels_of_another_number_than_the_samples_hide_no_later_ones(tmp_path: Path, bundle: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(1, 2))
    send_labels(tmp_path / "log", [("r-0", (1, 1)), ("r-0", (2,)), ("r-1", (0,)), ("r-1", (1, 1))])
    samples, opened = read(tmp_path / "log", bundle), Bundle.open(bundle)
    reader, signature = RequestLogReader(tmp_path / "log"), opened.contract.signature
    history = MonitorHistory.empty(5).updated(reader, opened.digest[:12], signature)
    assert (samples.usable, samples.labels.tolist(), history.labels.tolist()) == (2, [2, 0], [2, 0])


def test_labels_under_an_id_that_several_requests_have_are_left_out(tmp_path: Path, bundle: Path) -> None:
    for seed in (1, 2):
        log_requests(tmp_path / "log", bundle, images(seed, 3), name="trace")
    log_requests(tmp_path / "log", bundle, images(3, 1))
    send_labels(tmp_path / "log", [(f"trace-{i}", (0,)) for i in range(3)] + [("r-0", (2,))])
    found = read(tmp_path / "log", bundle)
    assert (found.requests, found.labeled, found.usable, found.labels.tolist()) == (7, 7, 1, [2])


def test_labels_of_a_client_are_for_its_own_requests_alone(tmp_path: Path, bundle: Path) -> None:
    for seed, client in enumerate(("shop/trace", "bank/trace", "shop/own")):
        log_requests(tmp_path / "log", bundle, images(seed, 1), name=client)
    sent = [("bank/trace-0", (1,)), ("evil/trace-0", (0,)), ("bank/own-0", (0,)), ("trace-0", (0,)), ("own-0", (2,))]
    send_labels(tmp_path / "log", sent)
    found = read(tmp_path / "log", bundle)  # of shop/trace-0 nobody knows: without a client's name it may be either
    assert (found.labeled, found.usable, found.labels.tolist()) == (3, 2, [1, 2])


def test_latest_requests_are_held_back_whatever_their_ids_are(tmp_path: Path, bundle: Path) -> None:
    for name in ("b", "a", "c"):
        log_requests(tmp_path / "log", bundle, images(ord(name), 10), name=name, wrong=[False] * 10)
    assert read(tmp_path / "log", bundle).held_back.tolist() == [False] * 21 + [True] * 9
    assert read(tmp_path / "log", bundle, 0.5).held_back.sum() == 15


def test_near_copies_of_a_sample_that_is_held_back_leave(tmp_path: Path, bundle: Path) -> None:
    scenes, noise = images(1, 40)["image"], np.random.default_rng(2)
    for frame in range(4):  # so each scene is at the beginning and at the end of the log
        moved = (scenes + noise.normal(0, 1e-3, scenes.shape)).astype(np.float32)
        log_requests(tmp_path / "log", bundle, {"image": moved}, name=f"frame-{frame}", wrong=[False] * 40)
    found = read(tmp_path / "log", bundle, 0.2)  # frames of 32 scenes
    trained, judged = (found.inputs["image"][chosen] for chosen in (~found.held_back, found.held_back))
    gaps = np.abs(trained[:, None] - judged[None]).max(axis=(2, 3, 4))
    assert (len(trained), len(judged), found.copies) == (4 * 8, 32, 160 - 4 * 8 - 32)
    assert gaps.min() > 0.01
    found.save(tmp_path / "test.npz", found.held_back)
    with np.load(tmp_path / "test.npz") as file:
        assert sorted(file.files) == ["image", "labels"]
        assert len(file["labels"]) == 32


def test_samples_of_few_numbers_leave_only_when_they_are_equal() -> None:
    columns = {"x": np.repeat(np.arange(6, dtype=np.float32) / 100, 2)[:, None]}
    held_back = np.arange(12) >= 9
    assert np.flatnonzero(_copies(columns, held_back)).tolist() == [8]


@pytest.mark.parametrize("absurd", [np.inf, -np.inf, 3e38, 1e30])
@pytest.mark.parametrize("shape", [(40, 3, 8, 8), (40, 20)], ids=["image", "table"])
def test_a_request_with_absurd_values_makes_no_other_one_a_copy(shape: tuple[int, ...], absurd: float) -> None:
    samples = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    samples[3] = absurd
    samples[5] = samples[35] + 0.001
    assert np.flatnonzero(_copies({"x": samples}, np.arange(40) >= 30)).tolist() == [5]


def test_names_of_classes_count_in_each_version_s_own_order(tmp_path: Path, bundle: Path) -> None:
    """A version that is served later may have other indices, so the log keeps the names."""
    log_requests(tmp_path / "log", bundle, images(1, 20))
    send_labels(tmp_path / "log", [(f"r-{i}", ("bright",)) for i in range(20)])
    opened, reader = Bundle.open(bundle), RequestLogReader(tmp_path / "log")
    signature = opened.contract.signature
    for names, index in ((signature.labels, 2), (signature.labels[::-1], 0), (("dark", "dim", "dull"), -1)):
        other = signature.replace(labels=names)
        history = MonitorHistory.empty(5).updated(reader, opened.digest[:12], other)
        assert history.labels.tolist() == [index] * 20
        usable = read_labeled_requests(reader, opened.digest[:12], other, 0.3).labels
        assert set(usable.tolist()) == {index} - {-1}
