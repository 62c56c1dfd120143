"""`gauntlet predict` of images, arrays and videos as a person meets it."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnx_text
import pandas as pd
import pytest
from bundles import keep, keep_golden, pack, png, samples
from loaded_modules import modules_after
from PIL import Image
from small_images import tiff_of_pages
from videos import OPENING, camera, cut, digits, gray, write_video

import gauntlet
from flows.cli.main import main
from gauntlet.core.errors import StageError
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from wings.prediction.library.video_files import open_video
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


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=int) for line in text.splitlines()]  # NaN is no JSON


def test_folder_is_predicted_and_nothing_is_dropped(
    packed: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.process_time()
    assert main(["predict", str(packed), str(images), "--json"]) == 1
    assert time.process_time() - start < 10  # to count the pages takes longer
    out, err = capsys.readouterr()
    found = {Path(str(line["image"])).name: line for line in lines(out)}
    assert [*found] == ["b.png", "broken.jpg", "pages.tif", "a.PNG"]
    assert found["b.png"]["prediction"]["top"][0]["label"] == "1"  # type: ignore[index]
    assert "broken.jpg: not an image" in str(found["broken.jpg"]["error"])
    assert "pages.tif: several frames" in str(found["pages.tif"]["error"])
    assert "2 images of 4 could not be read" in err
    assert "labels.csv" in err
    assert "hidden" not in out + err


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
    [line] = lines(capsys.readouterr().out)
    assert (line["image"], line["prediction"]["top"][0]["label"]) == ("-", "4")  # type: ignore[index]


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
        (["{packed}", "a.npz"], ["a.npz: not a readable .npz file"]),
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
    assert lines(capsys.readouterr().out)[4] == {"sample": "4", "prediction": {"outputs": {"y": [2.0, 2.0, 2.0]}}}
    with np.load(tmp_path / "out.npz") as file:
        assert file["y"].tolist() == [[2.0] * 3] * 5
    np.savez(tmp_path / "in.npz", a=np.array([[np.nan, 1, 1]], np.float32), b=np.ones((1, 3), np.float32))
    assert main(["predict", bundle, str(tmp_path / "in.npz"), "--json"]) == 0
    assert lines(capsys.readouterr().out) == [{"sample": "0", "prediction": {"outputs": {"y": ["NaN", 2.0, 2.0]}}}]
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
        found = [line["prediction"] for line in lines(capsys.readouterr().out)]
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
    found = [line["prediction"] for line in lines(capsys.readouterr().out)]
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


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """A video of the digits 0 to 4."""
    return write_video(tmp_path / "digits.mkv", digits(5), "FFV1")


def heed_ctrl_c() -> None:
    """Undo what a shell does to the processes that it starts in the background, and they to theirs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_every_frame_is_a_line_and_the_last_line_sums_up(
    packed: Path, video: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(packed), str(video), "--json"]) == 0
    *frames, last = lines(capsys.readouterr().out)
    assert [frame["frame"] for frame in frames] == [0, 1, 2, 3, 4]
    assert [frame["time_s"] for frame in frames] == [0, 0.1, 0.2, 0.3, 0.4]
    assert [frame["prediction"]["top"][0]["label"] for frame in frames] == ["0", "1", "2", "3", "4"]  # type: ignore[index]
    summary = last["summary"]
    assert isinstance(summary, dict)
    assert (summary["frames"], summary["dropped"]) == (5, 0)
    assert 0 < summary["latency_p50_ms"] <= summary["latency_p95_ms"]


def test_people_see_lines_and_a_sentence(packed: Path, video: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(packed), str(video), "--frames", "2"]) == 0
    first, second, summary, stages = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["0", "0.000", "s", "0:"]
    assert second.split()[:4] == ["1", "0.100", "s", "1:"]
    assert summary.startswith("2 frames in ")
    assert "latency p50" in summary
    assert summary.endswith("0 dropped")
    assert re.fullmatch(
        r"p95 of each stage in ms: decode [\d.]+, preprocess [\d.]+, infer [\d.]+, postprocess [\d.]+", stages
    )


def test_frames_are_drawn_as_images_or_as_a_video(
    packed: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(packed), str(video), "--draw", str(tmp_path / "drawn"), "--json"]) == 0
    assert [*lines(capsys.readouterr().out)[-1]["summary"]["stages_p95_ms"]][-1] == "draw"  # type: ignore[index]
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == [f"{i:06}.png" for i in range(5)]
    assert main(["predict", str(packed), str(video), "--draw", str(tmp_path / "new" / "drawn.mp4")]) == 0
    found = list(open_video(str(tmp_path / "new" / "drawn.mp4"), 3, 60).frames())
    assert len(found) == 5
    still = cv2.imread(str(tmp_path / "drawn" / "000003.png"))
    height, width = still.shape[:2]
    assert found[3].pixels.shape == (height + height % 2, width + width % 2, 3)
    assert abs(float(found[3].pixels.mean()) - float(still.mean())) < 4


def test_truncated_video_keeps_what_was_predicted(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = cut(write_video(tmp_path / "a.mkv", [gray(8 * i) for i in range(30)]))
    assert main(["predict", str(packed), str(broken), "--json", "--draw", str(tmp_path / "out.mp4")]) == 2
    out, err = capsys.readouterr()
    *frames, last = lines(out)
    assert last["summary"]["frames"] == len(frames) > 5  # type: ignore[index]
    assert err.count("\n") == 1
    assert f"cut-a.mkv: ends after {len(frames)} of about 30 frames" in err
    assert len(list(open_video(str(tmp_path / "out.mp4"), 3, 60).frames())) == len(frames)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.mp4"], "none.mp4: no such file"),
        (["{video}", "a.png"], "a video is predicted alone"),
        (["{video}", "--out", "a.npz"], "for a video use --json"),
        (["{video}", "--draw", "{video}"], "it is the video itself"),
        (["-", "--frames", "3"], "--frames: it is for a video"),
        (["-", "--timeout", "3"], "--timeout: it is for a video"),
        (["camera:zero"], "expected camera:N"),
    ],
)
def test_invalid_arguments_for_a_video_are_refused_in_one_line(
    packed: Path, video: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["predict", str(packed), *(argument.format(video=video) for argument in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gauntlet: ")
    assert words in err
    assert err.count("\n") == 1


def test_unreadable_video_is_one_line_without_the_noise_of_a_decoder(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    command = [sys.executable, "-m", "flows.cli.main", "predict", str(packed), str(tmp_path / "empty.mp4")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    fix = "Fix: copy or convert it again; FFmpeg cannot read it"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gauntlet: {tmp_path / 'empty.mp4'}: not a readable video. {fix}\n"


@pytest.mark.slow
def test_interrupted_camera_ends_with_the_summary(packed: Path, tmp_path: Path) -> None:
    with camera(digits(OPENING + 4)) as sender:
        sender.send(OPENING)
        command = [sys.executable, "-m", "flows.cli.main", "predict", str(packed), sender.url, "--json"]
        command += ["--draw", str(tmp_path / "out.mp4"), "--timeout", "120"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
        ) as process:
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    *frames, last = lines(first + out)
    assert len(frames) <= last["summary"]["frames"] <= len(frames) + 1  # type: ignore[index]
    assert "Traceback" not in err
    assert len(list(open_video(str(tmp_path / "out.mp4"), 3, 60).frames())) >= 1
