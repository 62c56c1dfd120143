"""Labeled requests as training and test data: which are usable, and on which side each one is."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from monitored_bundles import images, log_requests
from served_bundles import brightness_bundle

from gauntlet.bundle.bundle import Bundle
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.labeled_requests import LabeledRequests, is_held_back, read_labeled_requests


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return brightness_bundle(tmp_path / "b")


def read(log: Path, bundle: Path, share: float = 0.3) -> LabeledRequests:
    opened = Bundle.open(bundle)
    return read_labeled_requests(RequestLogReader(log), opened.digest[:12], opened.contract.signature, share)


def send_labels(log: Path, labels: Sequence[tuple[str, tuple[int, ...]]]) -> None:
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
    assert found.held_back.tolist() == [is_held_back(f"r-{i}", 0.3) for i in range(30)]


def test_another_version_has_none(tmp_path: Path, bundle: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(1, 3), wrong=[False] * 3)
    other = brightness_bundle(tmp_path / "other", bias=0.1)
    found = read(tmp_path / "log", other)
    assert (found.requests, found.usable, len(found.labels), found.inputs) == (0, 0, 0, {})


def test_first_labels_count_and_odd_ones_are_left_out(tmp_path: Path, bundle: Path) -> None:
    log_requests(tmp_path / "log", bundle, images(1, 4))
    send_labels(tmp_path / "log", [("r-0", (2,)), ("r-0", (1,)), ("r-1", (1, 1)), ("r-2", (3,)), ("gone", (0,))])
    found = read(tmp_path / "log", bundle)
    assert (found.labeled, found.usable, found.labels.tolist()) == (3, 1, [2])


def test_labels_under_an_id_that_several_requests_have_are_left_out(tmp_path: Path, bundle: Path) -> None:
    for seed in (1, 2):
        log_requests(tmp_path / "log", bundle, images(seed, 3), name="trace")
    log_requests(tmp_path / "log", bundle, images(3, 1))
    send_labels(tmp_path / "log", [(f"trace-{i}", (0,)) for i in range(3)] + [("r-0", (2,))])
    found = read(tmp_path / "log", bundle)
    assert (found.requests, found.labeled, found.usable, found.labels.tolist()) == (7, 7, 1, [2])


def test_side_of_a_request_depends_on_its_id_alone() -> None:
    ids = [f"request-{i}" for i in range(4000)]
    aside = {i for i in ids if is_held_back(i, 0.3)}
    assert 0.27 < len(aside) / len(ids) < 0.33
    assert aside < {i for i in ids if is_held_back(i, 0.5)}


def test_requests_that_a_server_samples_are_on_both_sides(tmp_path: Path) -> None:
    writer = RequestLog(RequestLogConfig(folder=tmp_path / "log", share=0.1))
    logged = [i for i in map(str, range(4000)) if writer.samples(i)]
    writer.close()
    assert 0.2 < sum(is_held_back(i, 0.3) for i in logged) / len(logged) < 0.4


def test_copy_of_a_sample_that_is_held_back_is_not_trained_on(tmp_path: Path, bundle: Path) -> None:
    one = {"image": np.repeat(images(1, 1)["image"], 40, axis=0)}
    log_requests(tmp_path / "log", bundle, one, wrong=[False] * 40)
    found = read(tmp_path / "log", bundle)
    assert found.usable == 40
    assert found.held_back.all()
    found.save(tmp_path / "test.npz", found.held_back)
    with np.load(tmp_path / "test.npz") as file:
        assert sorted(file.files) == ["image", "labels"]
        assert len(file["labels"]) == len(found.labels) > 0
