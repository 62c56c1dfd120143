"""Requests to replay, from files and folders; what does not fit is refused with the value and the fix."""

from pathlib import Path

import numpy as np
import pytest
from graded_bundles import FEATURES, LABELS, image_signature, make_bundle, samples
from PIL import Image
from replayed_problems import ReplayedProblem

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError
from gauntlet.datasets.splits import ArraySplit
from wings.lifecycle.library.promotion import replayed_requests
from wings.lifecycle.library.promotion.replayed_requests import (
    ArrayRequests,
    golden_requests,
    recorded_requests,
    split_requests,
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)


def test_arrays_with_labels_are_requests_with_their_true_labels(bundle: Bundle, tmp_path: Path) -> None:
    x, labels = samples(5)
    np.savez(tmp_path / "recorded.npz", x=x, labels=labels)
    found = recorded_requests(tmp_path / "recorded.npz", bundle.contract.signature)
    assert found.truth.tolist() == [LABELS[i] for i in labels]
    assert np.array_equal(found.inputs_for(bundle)["x"], x)


def test_golden_samples_are_requests_without_labels(bundle: Bundle) -> None:
    found = golden_requests(bundle)
    assert found.truth is None
    assert found.inputs_for(bundle)["x"].shape == (16, FEATURES)


@pytest.mark.parametrize("arrays", [{"z": np.zeros((2, FEATURES))}, {"x": np.zeros((2, 3))}, {"x": np.zeros((2,))}])
def test_requests_that_do_not_fit_the_model_are_refused(bundle: Bundle, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match=r"small of run-1 takes x \[64\]. Fix: replay images"):
        ArrayRequests("recorded.npz", arrays).inputs_for(bundle)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", r"not an \.npz file"),
        ({"x": np.zeros((2, 4)), "labels": np.array([0, 9])}, "labels has 9; allowed: 0 to 3"),
        ({"x": np.zeros((2, 4)), "labels": np.array([0.5, 1])}, "expected one integer per sample"),
        ({}, "no input"),
        (None, "no such file or folder"),
    ],
)
def test_bad_file_is_refused_in_one_line(bundle: Bundle, tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "recorded.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    with pytest.raises(ConfigError, match=message) as refused:
        recorded_requests(path, bundle.contract.signature)
    assert "\n" not in str(refused.value)


def test_folder_of_labels_has_labels_and_a_flat_one_none(tmp_path: Path) -> None:
    write_image(tmp_path / "labeled" / "bee" / "1.png")
    write_image(tmp_path / "labeled" / "dog" / "2.png")
    write_image(tmp_path / "flat" / "1.png")
    labeled = recorded_requests(tmp_path / "labeled", image_signature()).truth
    assert labeled.tolist() == ["bee", "dog"]
    assert recorded_requests(tmp_path / "flat", image_signature()).truth is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no files in it"),
        (("1.png", "bee/2.png"), "found both"),
        (("wasp/1.png",), "'wasp' is not one of the model's labels: ant, bee, cat, dog"),
    ],
)
def test_bad_folder_is_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        write_image(tmp_path / name)
    with pytest.raises(ConfigError, match=message):
        recorded_requests(tmp_path, image_signature())


def test_of_more_requests_than_fit_every_nth_is_taken(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = samples(100)
    monkeypatch.setattr(replayed_requests, "MAX_BYTES", 10 * x[0].nbytes)
    found = split_requests("test", ArraySplit({"x": x}, labels), bundle.contract.signature)
    taken = found.inputs_for(bundle)["x"]
    assert found.truth is not None
    assert len(taken) == len(found.truth) <= 10
    assert np.array_equal(taken[1], x[11])


def test_labels_of_another_problem_are_what_its_metrics_compare_with(tmp_path: Path) -> None:
    given = ReplayedProblem.of("segmentation", 4)
    np.savez(tmp_path / "recorded.npz", x=given.x, labels=given.truth)
    found = recorded_requests(tmp_path / "recorded.npz", given.signature)
    assert np.array_equal(found.truth, given.truth)
    assert split_requests("golden", ArraySplit({"x": given.x}, None), given.signature).truth is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((4, 2, 2)), "labels are float64.*segmentation needs whole numbers"),
        (np.full((4, 6, 5), 9), "labels .9. are out of range"),
    ],
)
def test_labels_that_do_not_fit_the_problem_are_refused(tmp_path: Path, labels: np.ndarray, message: str) -> None:
    given = ReplayedProblem.of("segmentation", 4)
    np.savez(tmp_path / "recorded.npz", x=given.x, labels=labels)
    with pytest.raises(ConfigError, match=message):
        recorded_requests(tmp_path / "recorded.npz", given.signature)


def test_folders_of_classes_are_no_truth_of_masks(tmp_path: Path) -> None:
    write_image(tmp_path / "bee" / "1.png")
    with pytest.raises(ConfigError, match=r"task is segmentation. Fix: give an \.npz file"):
        recorded_requests(tmp_path, image_signature().replace(task="segmentation"))
    found = recorded_requests(tmp_path, image_signature().replace(task="embedding")).truth
    assert found.tolist() == ["bee"]
