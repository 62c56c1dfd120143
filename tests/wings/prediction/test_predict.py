"""`gauntlet predict` of images and arrays as a person meets it."""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pandas as pd
import pytest
from bundles import keep, keep_golden, pack, png, samples
from harness import json_lines
from loaded_modules import modules_after
from PIL import Image
from small_images import tiff_of_pages

import gauntlet
from flows.cli.main import main
from gauntlet.core.errors import StageError
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from wings.prediction.predict_command import SAMPLES
from wings.python_api.sample_files import TABLES


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two readable images, a broken one, and a file that is none."""
    folder = tmp_path / "scans"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.png").write_bytes(png(1))
    (folder / "deep" / "a.PNG").write_bytes(png(2))
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "pages.tif").write_bytes(tiff_of_pages(60_000))
    (folder / "labels.csv").write_text("x")
    (folder / ".hidden.png").write_bytes(png(3))
    return folder


def test_folder_is_predicted_and_nothing_is_dropped(
    packed: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.process_time()
    assert main(["predict", str(packed), str(images), "--json"]) == 1
    assert time.process_time() - start < 10  # to count the pages takes longer
    out, err = capsys.readouterr()
    found = {Path(str(line["image"])).name: line for line in json_lines(out)}
    assert [*found] == ["b.png", "broken.jpg", "pages.tif", "a.PNG"]
    assert found["b.png"]["prediction"]["top"][0]["label"] == "1"
    assert "broken.jpg: not an image" in str(found["broken.jpg"]["error"])
    assert "pages.tif: several frames" in str(found["pages.tif"]["error"])
    assert "2 images of 4 could not be read" in err
    assert "labels.csv" in err
    assert "hidden" not in out + err


def test_folder_behind_a_link_is_named(
    packed: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.png").write_bytes(png(1))
    (tmp_path / "all" / "more").symlink_to(images)
    assert main(["predict", str(packed), str(tmp_path / "all")]) == 0
    err = capsys.readouterr().err
    assert "1 file left out" in err
    assert str(tmp_path / "all" / "more") in err


def test_table_has_the_labels_with_their_confidence(
    packed: Path, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(images)
    assert main(["predict", str(packed), "b.png", "deep"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "b.png" in line)
    assert row.split("b.png")[1].split()[0] == "1:"
    assert " %" in row
    assert out.count("prediction") == 1


def test_table_of_many_images_has_one_header_and_every_row(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for number in range(50):
        (tmp_path / f"{number:03}.png").write_bytes(png(number))
    assert main(["predict", str(packed), str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (out.count(".png"), out.count("prediction")) == (50, 1)
    assert len({line.index(": ") for line in out.splitlines() if ".png" in line}) == 1  # in one column


def test_image_is_read_from_standard_input(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(png(4))))
    assert main(["predict", str(packed), "-", "--json"]) == 0
    [line] = json_lines(capsys.readouterr().out)
    assert (line["image"], line["prediction"]["top"][0]["label"]) == ("-", "4")


def test_drawings_lie_as_their_images_do(packed: Path, images: Path, tmp_path: Path) -> None:
    main(["predict", str(packed), str(images), "--draw", str(tmp_path / "drawn")])
    found = sorted(path.relative_to(tmp_path / "drawn").as_posix() for path in (tmp_path / "drawn").rglob("*.png"))
    assert found == ["b.png.png", "deep/a.PNG.png"]
    with Image.open(tmp_path / "drawn" / "b.png.png") as drawn:
        assert drawn.height > drawn.width >= 320


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.zip", "-"], ["nothing.zip", "no such file", "gauntlet bundle RUN"]),
        (["{packed}", "missing.png"], ["missing.png: no such file or folder"]),
        (["{packed}", "{empty}"], ["no images", ".png"]),
        (["{packed}", "a.npz", "b.png"], ["a.npz", "alone"]),
        (["{packed}", "a.npz"], ["a.npz: not a readable .npz file", "Fix: write it again, with numpy.savez"]),
        (["{packed}", "{images}", "--draw", "{images}/drawn"], ["--draw", "inside a folder of inputs"]),
        (["{packed}", "{images}", "--out", "x.npz"], ["--out", "--json"]),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    packed: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    (tmp_path / "empty").mkdir()
    named = {"packed": packed, "images": images, "empty": tmp_path / "empty"}
    assert main(["predict", *(argument.format(**named) for argument in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gauntlet: ")
    for word in words:
        assert word in err


def bundled(space: Workspace, proto: onnx.ModelProto, *inputs: str) -> str:
    model = keep(proto, space.store, space.folder)
    golden = keep_golden(space.path(model), {name: samples(9, 3) for name in inputs}, space.store, space.folder)
    return str(space.path(pack(space, model, golden).artifacts["bundle"]))


def test_arrays_give_arrays(
    workspace: Callable[..., Workspace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx_text.model("sums (float[n,3] a, float[n,3] b) => (float[n,3] y) { y = Add(a, b) }")
    bundle = bundled(workspace(), proto, "a", "b")
    np.savez(tmp_path / "in.npz", a=np.ones((5, 3), np.float32), b=np.ones((5, 3), np.float32), unused=np.zeros(1))
    assert main(["predict", bundle, str(tmp_path / "in.npz"), "--json", "--out", str(tmp_path / "out.npz")]) == 0
    assert json_lines(capsys.readouterr().out)[4] == {"sample": "4", "prediction": {"outputs": {"y": [2.0, 2.0, 2.0]}}}
    with np.load(tmp_path / "out.npz") as file:
        assert file["y"].tolist() == [[2.0] * 3] * 5
    np.savez(tmp_path / "in.npz", a=np.array([[np.nan, 1, 1]], np.float32), b=np.ones((1, 3), np.float32))
    assert main(["predict", bundle, str(tmp_path / "in.npz"), "--json"]) == 0
    assert json_lines(capsys.readouterr().out) == [{"sample": "0", "prediction": {"outputs": {"y": ["NaN", 2.0, 2.0]}}}]
    np.savez(tmp_path / "in.npz", a=np.ones((5, 3), np.float32))
    assert main(["predict", bundle, str(tmp_path / "in.npz")]) == 2
    assert "no array for the input 'b'" in capsys.readouterr().err
    assert main(["predict", bundle, str(tmp_path)]) == 2
    assert "not images. Fix: give them in an .npz file or a table" in capsys.readouterr().err


def test_table_is_read_as_a_run_reads_it(
    workspace: Callable[..., Workspace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "in.csv"
    twice = onnx_text.model("twice (float[n,3] x) => (float[n,3] y) { y = Add(x, x) }")
    bundle = bundled(workspace(), twice, "x")
    table.write_text("one,two,three,label\n1,2,3,cat\n4,5,6.5,dog\n")
    np.save(tmp_path / "in.npy", np.array([[1, 2, 3], [4, 5, 6.5]]))
    for name in (table.name, "in.npy"):
        assert main(["predict", bundle, str(tmp_path / name), "--json"]) == 0
        found = [line["prediction"] for line in json_lines(capsys.readouterr().out)]
        assert found == [{"outputs": {"y": [2, 4, 6]}}, {"outputs": {"y": [8, 10, 13]}}]
    table.write_text("one,two\n1,2\n")
    assert main(["predict", bundle, str(table)]) == 2
    refused = f"gauntlet: {table} is not read as samples: 2 columns (one, two), but the model's input 'x' takes 3."
    assert capsys.readouterr().err.startswith(refused)


def test_columns_that_the_model_was_fitted_on_are_found_by_name(
    workspace: Callable[..., Workspace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "in.csv"
    proto = onnx_text.model("same (float[n,3] x) => (float[n,3] y) { y = Identity(x) }")
    signature_from_graph(proto).replace(columns=("one", "the_two", "three")).write(proto)
    bundle = bundled(workspace(), proto, "x")
    table.write_text("three,label,one,the two,more\n3,cat,1,2,4\n6.5,dog,4,5,4\n")
    assert main(["predict", bundle, str(table), "--json"]) == 0
    found = [line["prediction"] for line in json_lines(capsys.readouterr().out)]
    assert found == [{"outputs": {"y": [1, 2, 3]}}, {"outputs": {"y": [4, 5, 6.5]}}]
    run = gauntlet.load(bundle).run
    assert run(pd.DataFrame({"three": [3], "the two": [2], "one": [1]}))["y"].tolist() == [[1, 2, 3]]
    assert run(pd.DataFrame({"a": [3], "b": [2], "c": [1]}))["y"].tolist() == [[3, 2, 1]]
    table.write_text("one,three,four\n1,3,4\n")
    assert main(["predict", bundle, str(table)]) == 2
    missing = "no column 'the_two', on which the model was fitted; found: one, three, four"
    assert missing in capsys.readouterr().err
    with pytest.raises(StageError, match=r"^no column 'the_two'"):
        run(pd.read_csv(table))


def test_every_kind_of_file_with_samples_is_known() -> None:
    assert {*SAMPLES} == {".npz", ".npy", *TABLES}


def test_commands_load_neither_servers_nor_frameworks(packed: Path, images: Path) -> None:
    arguments = ["predict", str(packed), str(images / "b.png")]
    loaded = modules_after(f"from flows.cli.main import main; assert main({arguments!r}) == 0")
    assert not {"torch", "prefect", "mlflow", "sklearn", "matplotlib", "tensorflow", "jax"} & loaded
    assert "onnxruntime" in loaded
