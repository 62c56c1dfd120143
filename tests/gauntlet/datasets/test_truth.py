"""Labels say which problem they belong to, and each has a name."""

from pathlib import Path

import numpy as np
import pytest

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Task
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.truth import class_indices, label_names, task_of

FILE = Path("test.npz")
LABELS = {
    "classification": np.array([0, 2, 1]),
    "multi-label": np.array([[0, 1], [1, 1]]),
    "detection": np.array([[[0, 0, 9, 9, 2, 1], [0, 0, 0, 0, -1, 0.0]]]),
    "segmentation": np.array([[[0, 1], [255, 2]]]),
    "regression": np.array([0.5, 1.5]),
    "text": np.array(["ab", "ca"]),
}
NAMES = {
    "classification": ("0", "1", "2"),
    "multi-label": ("0", "1"),
    "detection": ("0", "1", "2"),
    "segmentation": ("0", "1", "2"),
    "regression": ("0",),
    "text": ("a", "b", "c"),
}


@pytest.mark.parametrize("task", LABELS)
def test_labels_suggest_their_problem_and_have_names(task: Task) -> None:
    assert task_of(LABELS[task]) == task
    assert label_names(task, (), {FILE: LABELS[task]}) == NAMES[task]
    assert label_names(task, NAMES[task], {FILE: LABELS[task]}) == NAMES[task]


@pytest.mark.parametrize(
    ("white", "more", "classes"), [(255, 0, [0, 1]), (255, 7, [0, 7, 255]), (1, 0, [0, 1]), (1.0, 0, [0, 1])]
)
def test_masks_that_are_black_and_white_have_two_classes(
    tmp_path: Path, white: float, more: int, classes: list[int]
) -> None:
    masks = np.zeros((40, 8, 8), np.uint8 if isinstance(white, int) else np.float32)
    masks[:, 2:4], masks[::5, 6] = white, more
    np.savez(tmp_path / "samples.npz", x=np.arange(40.0)[:, None], labels=masks)
    loaded = NpzArrays(path=tmp_path / "samples.npz").load()
    assert loaded.signature.task == "segmentation"
    assert np.unique(np.concatenate([split.labels for split in loaded.splits.values()])).tolist() == classes


def test_without_labels_there_is_no_problem_and_no_name() -> None:
    assert task_of(None) == "arrays"
    assert label_names("arrays", (), {}) == ()


@pytest.mark.parametrize(
    ("task", "labels", "names", "told"),
    [
        ("classification", np.array([0, 3]), ("a", "b"), r"test.npz: labels \[3\] are out of.*classes, so 0 to 1"),
        ("classification", np.array([-1, 0]), (), r"labels \[-1\] are out of range.* Fix: number the classes from 0"),
        ("classification", np.array([-1, -1]), (), r"names 0 classes\. Fix: .*; leave out samples without a label"),
        ("classification", np.array([0.5]), (), r"float64\[1\]; data.task classification needs one whole number"),
        ("multi-label", np.array([[0, 2]]), (), r"labels \[2\] are out of range; each of several classes is 0 or 1"),
        ("multi-label", np.array([[0, 1, 1]]), ("a", "b"), r"data.labels names 2 classes"),
        ("detection", np.array([[[0, 0, 9, 9, 7, 1.0]]]), ("a", "b"), r"labels \[7\] are out of range"),
        ("detection", np.zeros((1, 2, 5)), (), r"labels have 5 columns; data.task detection needs left, top, right"),
        ("segmentation", np.array([[[0, 9]]]), ("a", "b"), r"labels \[9\] are out of range"),
        ("text", np.array(["abz"]), ("a", "b"), r"labels \['z'\] are out of range; data.labels names 2 characters"),
        ("arrays", np.zeros((1, 2, 2, 2), int), (), "data.task arrays takes none. Fix: remove them"),
    ],
)
def test_labels_that_do_not_fit_are_named(task: Task, labels: np.ndarray, names: tuple[str, ...], told: str) -> None:
    with pytest.raises(StageError, match=told):
        label_names(task, names, {FILE: labels})


def test_only_whole_numbers_are_class_indices() -> None:
    assert class_indices(LABELS["classification"]).tolist() == [0, 2, 1]
    assert [class_indices(LABELS[task]) for task in LABELS if task != "classification"] == [None] * 5
    assert class_indices(None) is None
