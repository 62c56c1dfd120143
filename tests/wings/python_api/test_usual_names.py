"""Arrays under the names and with the axes that people have are those of the model, unless its own names say more."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_text
import pytest

from gauntlet.core.artifact import Store
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.python_api.objects import samples_file

X = np.arange(48, dtype=np.float32).reshape(12, 4)
Y = np.arange(12) % 3
BOTH = {"image": X, "labels": Y}
SPLIT = {"train": {"image": X, "labels": Y}, "test": {"image": X[:6], "labels": Y[:6]}}
TESTED = {"train": {"image": X}, "test": {"image": X[:6]}}


def model(folder: Path, inputs: str = "float[n,4] image") -> str:
    first = inputs.split("] ")[1].partition(",")[0]
    return onnx_text.save(folder / "m.onnx", f"m ({inputs}) => (float[n,k] z) {{ z = Flatten({first}) }}")


def read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return {file.stem: read(file) for file in sorted(path.glob("*.npz"))}
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def stored(path: Path, source: str, store: Path) -> tuple[dict[str, Any], str]:
    notes: dict[str, str] = {}
    return read(Path(str(samples_file(path, source, Store(store), notes=notes)))), notes.get("arrays", "")


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"X": X, "y": Y}, BOTH),
        ({"x": X, "y": Y, "seed": np.int64(3), "feature_names": np.array(list("abcd"))}, BOTH),
        ({"data": X, "target": Y}, BOTH),
        ({"images": X, "labels": Y}, BOTH),
        ({"arr_0": X, "arr_1": Y}, BOTH),
        ({"image": X, "y": Y}, BOTH),
        ({"X_test": X, "y_test": Y}, BOTH),
        ({"anything": X, "labels": Y}, BOTH),
        ({"x_train": X, "y_train": Y, "x_test": X[:6], "y_test": Y[:6]}, SPLIT),
        ({"train_images": X, "train_labels": Y, "val_images": X[:6], "val_labels": Y[:6]}, SPLIT),
        ({"Xtrain": X, "Xtest": X[:6]}, TESTED),
    ],
    ids=lambda arrays: " ".join(arrays),
)
def test_usual_names_are_the_input_and_its_labels(
    tmp_path: Path, arrays: dict[str, Any], expected: dict[str, Any]
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    found, said = stored(tmp_path / "x.npz", model(tmp_path), tmp_path / "store")
    np.testing.assert_equal(found, expected)
    assert f"{', '.join(arrays)} read as image" in said


@pytest.mark.parametrize(
    ("inputs", "arrays"),
    [
        ("float[n,4] x, float[n,4] y", {"x": X, "y": X}),
        ("float[n,4] x, float[n,4] y", {"x": X, "y": X, "labels": Y}),
        ("float[n,4] image", BOTH),
        ("float[n,4] y", {"y": X}),
    ],
)
def test_names_of_the_model_come_first(tmp_path: Path, inputs: str, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    assert samples_file(tmp_path / "x.npz", model(tmp_path, inputs), Store(tmp_path / "s")) == str(tmp_path / "x.npz")


def test_folder_of_splits_or_of_single_arrays_is_read_alike(tmp_path: Path) -> None:
    for folder in ("splits", "arrays"):
        (tmp_path / folder).mkdir()
    np.savez(tmp_path / "splits" / "train.npz", X=X, y=Y)
    np.savez(tmp_path / "splits" / "test.npz", X=X[:6], y=Y[:6])
    for name, array in (("X", X), ("y", Y)):
        np.save(tmp_path / "arrays" / f"{name}.npy", array)
    np.testing.assert_equal(stored(tmp_path / "splits", model(tmp_path), tmp_path / "store")[0], SPLIT)
    np.testing.assert_equal(stored(tmp_path / "arrays", model(tmp_path), tmp_path / "store")[0], BOTH)


@pytest.mark.parametrize(
    ("inputs", "shape", "taken"),
    [
        ("float[n,24,1] x", (24,), (24, 1)),
        ("float[n,1,24] x", (24,), (1, 24)),
        ("float[n,t,1] x", (24,), (24, 1)),
        ("float[n,24] x", (24, 1), (24,)),
        ("float[n,24] x", (2, 4, 3), (24,)),
        ("float[n,3,2,4] x", (24,), (3, 2, 4)),
        ("float[n,3,h,w] x", (2, 4, 3), (3, 2, 4)),
        ("float[n,h,w,1] x", (1, 2, 4), (2, 4, 1)),
        ("float[n,t,3] x", (24,), (24,)),
        ("float[n,25] x", (24, 1), (24, 1)),
        ("float[1,24] x", (1, 24), (1, 24)),
        ("float[n,5,2,4] x", (2, 4, 5), (2, 4, 5)),
    ],
)
def test_samples_get_the_axes_of_the_input_where_one_way_leads_there(
    tmp_path: Path, inputs: str, shape: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    array = np.arange(5 * np.prod(shape), dtype=np.float32).reshape(5, *shape)
    np.savez(tmp_path / "x.npz", x=array)
    found, said = stored(tmp_path / "x.npz", model(tmp_path, inputs), tmp_path / "store")
    channels = len(shape) == len(taken) == 3 and shape != taken
    moved = np.moveaxis(array, *((-1, 1) if taken[0] == 3 else (1, -1))) if channels else array
    np.testing.assert_array_equal(found["x"], moved.reshape(5, *taken))
    assert said == (f"x {[*shape]} taken as {[*taken]}" if shape != taken else "")


def test_scalar_is_for_every_sample(tmp_path: Path) -> None:
    source = onnx_text.save(tmp_path / "m.onnx", "g (float[n,4] x, float s) => (float[n,4] y) { y = Mul(x, s) }")
    x = np.random.default_rng(0).random((30, 4), np.float32)
    np.savez(tmp_path / "x.npz", x=x, s=np.float32(3), labels=np.arange(30))
    arrays, _ = stored(tmp_path / "x.npz", source, tmp_path / "store")
    assert {name: array.shape for name, array in arrays.items()} == {"x": (30, 1, 4), "s": (30,), "labels": (30,)}
    outputs = batched_inference(open_session(Path(source)), arrays).run(8)
    np.testing.assert_allclose(outputs["y"][:, 0], 3 * x)
