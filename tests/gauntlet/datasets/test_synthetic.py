"""Random samples in the types and shapes that a model declares; labels say which problem they belong to."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.arrays import INDEX_LIMIT
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Task
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.synthetic import DEFAULT_LENGTH, Synthetic
from gauntlet.datasets.truth import class_indices, label_names, task_of
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.data import data


def model(folder: Path, *inputs: str) -> Path:
    """Write a model that passes every input through; each is a type and a name."""
    outputs = ", ".join(f"{declared}_out" for declared in inputs)
    nodes = " ".join(f"{name}_out = Identity({name})" for _, name in map(str.split, inputs))
    proto = onnx_text.model(f"through ({', '.join(inputs)}) => ({outputs}) {{ {nodes} }}")
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


PICTURE = "float[batch,3,height,8] picture"
INPUTS = (
    PICTURE,
    "float16[batch,4] half",
    "int64[batch,length] ids",
    "uint8[batch,2] bytes",
    "bool[batch,length] mask",
)


def test_samples_have_the_declared_types_and_shapes_when_drawn(tmp_path: Path) -> None:
    dataset = Synthetic(model=model(tmp_path, *INPUTS), samples=30, dynamic_axes={"length": 5}).load()
    assert {name: len(split) for name, split in dataset.splits.items()} == {"calibration": 10, "test": 20}
    taken = dataset.splits["test"].take(slice(None))
    assert {name: (array.dtype.name, array.shape) for name, array in taken.items()} == {
        "picture": ("float32", (20, 3, DEFAULT_LENGTH, 8)),
        "half": ("float16", (20, 4)),
        "ids": ("int64", (20, 5)),
        "bytes": ("uint8", (20, 2)),
        "mask": ("bool", (20, 5)),
    }
    assert set(np.unique(taken["ids"])) == set(range(INDEX_LIMIT))
    assert set(np.unique(taken["mask"])) == {False, True}
    assert abs(float(taken["picture"].std()) - 1) < 0.1
    assert all(split.labels is None for split in dataset.splits.values())
    assert [spec.name for spec in dataset.signature.inputs] == ["picture", "half", "ids", "bytes", "mask"]


def test_the_model_takes_its_samples_when_it_is_called(tmp_path: Path) -> None:
    path = model(tmp_path, *INPUTS)
    samples = Synthetic(model=path, samples=16).load().splits["test"].take(slice(None))
    outputs = batched_inference(open_session(path), samples).run(4)
    assert all(np.array_equal(outputs[f"{name}_out"], array) for name, array in samples.items())


@pytest.mark.parametrize(
    ("inputs", "axes"),
    [
        (("float[2,3] state", "int64 step"), {"state": 3, "step": 1}),
        (("float[n,3] a", "float[m,3] b"), {"a": 3, "b": 3}),
    ],
    ids=["scalar beside a state", "two first axes"],
)
def test_each_sample_is_a_whole_input_when_the_model_has_no_batch(
    tmp_path: Path, inputs: tuple[str, ...], axes: dict[str, int]
) -> None:
    path = model(tmp_path, *inputs)
    samples = Synthetic(model=path, samples=18).load().splits["test"].take(slice(None))
    session = open_session(path)
    assert {name: array.ndim for name, array in samples.items()} == axes
    assert all(len(array) == 12 for array in batched_inference(session, samples).run(1).values())


def test_samples_are_decided_by_the_seed(tmp_path: Path) -> None:
    path = model(tmp_path, *INPUTS)
    first, again, other = (
        Synthetic(model=path, seed=seed).load().splits["test"].take(slice(None))["picture"] for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_synthetic_is_refused_when_the_model_takes_texts_or_cannot_be_read(tmp_path: Path) -> None:
    path = model(tmp_path, "string[batch] text")
    with pytest.raises(StageError, match=r"no random values for input 'text' of type str. Fix: bring samples"):
        Synthetic(model=path).load()
    with pytest.raises(StageError, match=r"nowhere\.onnx"):
        Synthetic(model=tmp_path / "nowhere.onnx").load()


def test_random_samples_are_a_warning_that_the_winner_bears(tmp_path: Path) -> None:
    [check] = Synthetic(model=model(tmp_path, PICTURE), samples=30).load().checks
    assert (check.name, check.passed, check.severity) == ("data.random_samples", False, "warning")
    assert "the winner was calibrated and tested on random inputs" in str(check)


def test_random_samples_that_are_equal_by_chance_are_no_leak(tmp_path: Path, workspace) -> None:
    config = Synthetic(model=model(tmp_path, "bool[batch,2] flags"), samples=30)  # four different samples
    report = data(config, workspace())
    report.raise_if_blocked()
    assert "data.leaked_images" not in {check.name for check in report.checks}


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


def test_classes_in_a_column_are_classes() -> None:
    assert task_of(np.array([[0], [2], [1]])) == "classification"
    assert task_of(np.array([[0.5], [2.0]])) == "regression"
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
