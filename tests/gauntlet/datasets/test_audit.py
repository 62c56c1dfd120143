"""The gate on the data, on data that is broken for real."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_images import write_pictures

from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.signature import Preprocessing
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.audit import shared_samples
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import SPLITS, ArraySplit
from tasks.data import DataFacts, data

from .conftest import failed

Splits = dict[str, tuple[np.ndarray, np.ndarray]]
Audit = Callable[..., Report[DataFacts]]


@pytest.fixture
def splits() -> Splits:
    random = np.random.default_rng(0)
    return {n: (random.standard_normal((9, 1, 4, 4)).astype(np.float32), np.arange(9) % 3) for n in SPLITS}


@pytest.fixture
def audit(tmp_path: Path, workspace: Callable[..., Workspace]) -> Audit:
    def run(splits: Splits, **how: bool) -> Report[DataFacts]:
        for name, (inputs, labels) in splits.items():
            np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=labels)
        return data(NpzArrays(path=tmp_path, labels=("cat", "dog", "owl")), workspace(), **how)

    return run


def warned(report: Report[DataFacts]) -> dict[str, str]:
    """The details of the checks that failed as warnings; none may have failed as an error."""
    report.raise_if_blocked()
    return {check.name.removeprefix("data."): check.detail for check in report.checks if not check.passed}


@pytest.mark.parametrize(("source", "target"), [("train", "test"), ("validation", "calibration"), ("test", "train")])
def test_audit_fails_and_names_the_image_when_it_is_in_two_splits(
    audit: Audit, splits: Splits, source: str, target: str
) -> None:
    splits[target][0][5] = splits[source][0][2]
    report = audit(splits)
    assert failed(report) == {"leaked_images": 1}
    assert f"{source}[2]" in report.failures[0].detail
    assert f"{target}[5]" in report.failures[0].detail
    with pytest.raises(GateFailed, match=r"data\.leaked_images: 1 images must be == 0 images"):
        report.raise_if_blocked()


def test_audit_counts_an_image_once_when_it_is_in_all_splits(audit: Audit, splits: Splits) -> None:
    for name in SPLITS:
        splits[name][0][4] = 7
    report = audit(splits)
    assert failed(report) == {"leaked_images": 1}
    assert all(f"{name}[4]" in report.failures[0].detail for name in SPLITS)


def test_audit_passes_when_an_image_is_twice_in_one_split(audit: Audit, splits: Splits) -> None:
    splits["train"][0][5] = splits["train"][0][2]
    assert failed(audit(splits)) == {}


def test_audit_keeps_every_artifact_when_two_splits_are_the_same_file(
    audit: Audit, splits: Splits, workspace: Callable[..., Workspace]
) -> None:
    splits["calibration"] = splits["validation"]
    report = audit(splits)
    assert failed(report) == {"leaked_images": 9}
    assert all(workspace().store.is_intact(artifact) for artifact in report.artifacts.values())


@pytest.mark.parametrize("name", ["train", "test"])
def test_audit_fails_and_names_the_class_when_it_has_no_image(audit: Audit, splits: Splits, name: str) -> None:
    splits[name][1][splits[name][1] == 1] = 0
    report = audit(splits)
    assert failed(report) == {"empty_classes": 1}
    assert report.failures[0].detail == f"{name}: dog"
    assert report.facts.images_per_class[name] == {"cat": 6, "dog": 0, "owl": 3}


def test_class_without_samples_is_a_warning_where_no_model_learns(audit: Audit, splits: Splits) -> None:
    inputs, labels = splits["test"]
    assert warned(audit({"test": (inputs, labels % 2)}, trained=False)) == {"empty_classes": "test: owl"}


def test_values_that_are_not_finite_are_a_warning_where_a_model_may_take_them(audit: Audit, splits: Splits) -> None:
    splits["test"][0][3, 0, 1, 1] = np.nan
    assert warned(audit(splits, trained=False)) == {"non_finite_values": "test: 1, the first in test[3]"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SPLITS)
def test_audit_fails_counts_and_names_the_first_when_values_are_not_finite(
    audit: Audit, splits: Splits, name: str, value: float
) -> None:
    splits[name][0][3, 0, 1, 1:3] = value
    splits[name][0][7, 0, 0, 0] = value
    report = audit(splits)
    assert failed(report) == {"non_finite_values": 3}
    assert report.failures[0].detail == f"{name}: 3, the first in {name}[3]"


def test_audit_knows_a_text_again_when_it_is_stored_wider_elsewhere(
    tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    np.savez(tmp_path / "test.npz", text=np.array(["a", "bb", "c"]))
    np.savez(tmp_path / "calibration.npz", text=np.array(["a much longer text", "bb"]))
    report = data(NpzArrays(path=tmp_path, layout="none"), workspace())
    assert warned(report) == {"leaked_samples": "the same sample is calibration[1] and test[1]"}


def test_audit_warns_of_an_image_in_two_splits_when_no_model_learns_from_them(audit: Audit, splits: Splits) -> None:
    splits["test"][0][5] = splits["train"][0][2]
    assert warned(audit(splits, trained=False)) == {"leaked_images": "the same image is train[2] and test[5]"}


def test_audit_tells_samples_apart_when_only_one_of_several_inputs_differs(
    tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    np.savez(tmp_path / "test.npz", a=np.zeros((4, 2)), b=np.arange(4))
    np.savez(tmp_path / "calibration.npz", a=np.zeros((3, 2)), b=np.array([3, 4, 5]))
    report = data(NpzArrays(path=tmp_path), workspace())
    assert warned(report) == {"leaked_samples": "the same sample is calibration[0] and test[3]"}


def test_sample_in_two_splits_is_named_by_its_first_place_when_it_is_there_twice() -> None:
    """A stage that reads only the first samples of a split must not miss it for a copy further on."""
    arrays = [ArraySplit({"x": np.array(values)}) for values in ([5, 7, 6, 7], [8, 7])]
    recipe = ImageTransform(how=Preprocessing(height=1, width=1, scale=1, mean=(0,), std=(1,)), layout="NCHW")

    def files(split: ArraySplit) -> ImageFileSplit:
        digests = tuple(str(value).encode() for value in split.inputs["x"])
        return ImageFileSplit(Path("x"), tuple(map(str, digests)), np.zeros(len(digests), np.int64), digests, recipe)

    assert shared_samples(*arrays) == shared_samples(*map(files, arrays)) == [(1, 1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_of_image_files_are_known_again_as_arrays(tmp_path: Path, dtype: type) -> None:
    write_pictures(tmp_path / "images", "cat", "dog", count=12, height=8, width=8)
    test = ImageFolder(path=tmp_path / "images", image_size=8).load().splits["test"]
    inputs = test.take(slice(None))["input"].astype(dtype)
    assert shared_samples(ArraySplit({"input": inputs[::-1]}), test) == [
        (own, len(inputs) - 1 - own) for own in range(len(inputs))
    ]


def test_samples_are_compared_by_the_names_of_their_inputs() -> None:
    a, b = np.arange(6).reshape(3, 2), np.arange(6, 12).reshape(3, 2)
    unused = np.zeros((3, 1))
    expected = [(0, 0), (1, 1), (2, 2)]
    assert shared_samples(ArraySplit({"a": a, "b": b}), ArraySplit({"unused": unused, "b": b, "a": a})) == expected
    assert shared_samples(ArraySplit({"a": a, "b": b}), ArraySplit({"a": b, "b": a})) == []
    assert shared_samples(ArraySplit({"a": a}), ArraySplit({"b": a})) == []
