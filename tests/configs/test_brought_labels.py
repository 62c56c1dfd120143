"""What labels are is told by their values and by the model's outputs, in every form that frameworks have them."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_text
import pytest
from inferred_configs import inferred, saved

from configs.brought_model import read_labels
from gauntlet.core.errors import ConfigError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 8)).astype(np.float32)
CLASSES = RNG.permutation(np.arange(120) % 4)
ONE_HOT, SEVERAL = np.eye(4)[CLASSES], RNG.random((120, 4)) > 0.5
BINARY = (CLASSES > 1).astype(np.float32)
LAST = {"probabilities": "Softmax(z)", "logits": "Identity(z)", "each": "Sigmoid(z)"}
VALUES = RNG.normal(size=(120, 4))
MASKS = RNG.integers(0, 2, (120, 2, 4))


def network(path: Path, last: str, columns: int) -> Path:
    weights = ", ".join(map(str, RNG.normal(size=8 * columns)))
    body = f"w = Constant<value_floats = [{weights}]>() s = Constant<value_ints = [8, {columns}]>() v = Reshape(w, s)"
    text = f"m (float[n,8] x) => (float[n,{columns}] y) {{ {body} z = MatMul(x, v) y = {last} }}"
    return saved(path / "m.onnx", onnx_text.model(text))


@pytest.mark.parametrize(
    ("last", "columns", "labels", "task", "stored"),
    [
        ("logits", 4, CLASSES[:, None], "classification", CLASSES),
        ("logits", 4, CLASSES[:, None].astype(np.float32), "classification", CLASSES),
        ("logits", 4, CLASSES * 1.0, "classification", CLASSES),
        ("logits", 4, np.array(list("abcd"))[CLASSES][:, None], "classification", CLASSES),
        ("probabilities", 4, ONE_HOT, "classification", CLASSES),
        ("logits", 4, ONE_HOT.astype(bool), "classification", CLASSES),
        ("each", 4, ONE_HOT, "multi-label", ONE_HOT),
        ("logits", 4, SEVERAL, "multi-label", SEVERAL),
        ("logits", 4, SEVERAL.astype(np.float32), "multi-label", SEVERAL),
        ("logits", 4, np.abs(ONE_HOT - 0.02), "regression", np.abs(ONE_HOT - 0.02)),
        ("logits", 4, VALUES, "regression", VALUES),
        ("logits", 4, CLASSES * 1000.0, "regression", CLASSES * 1000.0),
        ("logits", 4, CLASSES / 2, "regression", CLASSES / 2),
        ("each", 1, BINARY, "classification", BINARY),
        ("logits", 1, BINARY[:, None], "classification", BINARY),
        ("logits", 1, CLASSES * 10, "regression", CLASSES * 10),
        ("logits", 1, VALUES[:, :1], "regression", VALUES[:, :1]),
    ],
)
def test_labels_are_what_values_and_outputs_say(
    tmp_path: Path, last: str, columns: int, labels: npt.NDArray[np.generic], task: str, stored: npt.NDArray[np.generic]
) -> None:
    model = network(tmp_path, LAST[last], columns)
    np.savez(tmp_path / "x.npz", x=X, labels=labels)
    dataset = inferred(model, tmp_path / "x.npz")[1].data.load()
    assert dataset.signature.task == task
    rows = {row.tobytes(): truth for row, truth in zip(X, stored, strict=True)}
    split = dataset.splits["test"]
    expected = np.array([rows[row.tobytes()] for row in split.take(slice(None))["x"]])
    np.testing.assert_array_equal(split.labels, expected)


def test_fit_of_zeros_and_ones_stays_a_regression(tmp_path: Path) -> None:
    model = network(tmp_path, "Softsign(z)", 1)
    np.savez(tmp_path / "x.npz", x=X, labels=BINARY)
    assert inferred(model, tmp_path / "x.npz")[1].data.load().signature.task == "regression"


@pytest.mark.parametrize("labels", [MASKS, MASKS[..., None], MASKS[:, None].astype(np.float32)])
def test_masks_may_have_a_channel(tmp_path: Path, labels: npt.NDArray[np.generic]) -> None:
    text = "m (float[n,3,2,4] x) => (float[n,1,2,4] y) { a = Constant<value_ints = [1]>() y = ReduceMean(x, a) }"
    model = saved(tmp_path / "m.onnx", onnx_text.model(text))
    np.savez(tmp_path / "x.npz", x=RNG.random((120, 3, 2, 4), np.float32), labels=labels)
    dataset = inferred(model, tmp_path / "x.npz")[1].data.load()
    assert (dataset.signature.task, dataset.splits["test"].labels.shape) == ("segmentation", (84, 2, 4))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(list("abcde"))[RNG.integers(0, 5, 120)], "label 'a' is one of 5, but the model has scores for 4"),
        (np.array(["a"] * 120), "label 'a' is one of 1, but the model has scores for 4 classes. Fix: name all"),
        (
            CLASSES + 1,
            "highest label is 4, but the model has scores for 4 classes, 0 to 3. Fix: number the classes from 0",
        ),
    ],
)
def test_classes_without_a_score_are_refused(tmp_path: Path, labels: npt.NDArray[np.generic], message: str) -> None:
    np.savez(tmp_path / "x.npz", x=X, labels=labels)
    with pytest.raises(ConfigError, match=re.escape(message)):
        inferred(network(tmp_path, LAST["logits"], 4), tmp_path / "x.npz")


def test_texts_as_labels_of_one_number_ask_for_the_order_of_the_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X, labels=np.where(CLASSES > 0, "yes", "no"))
    model = network(tmp_path, LAST["logits"], 1)
    with pytest.raises(ConfigError, match=r"texts such as '(no|yes)', but the model returns one number\. Fix: "):
        inferred(model, tmp_path / "x.npz")


def test_file_of_labels_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\r\ndog\r\n", encoding="utf-8-sig")
    assert read_labels(tmp_path / "names.txt") == ("cat", "dog")
