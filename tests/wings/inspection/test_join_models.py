"""A detector and a reader are joined into one model, which is judged, bundled and served as any other."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from detector_models import SIDE, images, suppressed
from harness import SHORT, called
from PIL import Image
from server_process import json_request, serving
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from configs.brought_model import infer_config
from configs.loader import validated
from configs.schema import PipelineConfig
from flows.cli.main import main
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.run_report import RunReport
from gauntlet.runtime.session import open_session
from wings.inspection.library import join_models as module
from wings.inspection.library.join_models import join_models

READER = """reader (float[n,3,16,16] x) => (float[n,6] z) <float[8,3,3,3] w, float[6,8] k> {
  c = Conv(x, w)  r = Relu(c)  g = GlobalAveragePool(r)  f = Flatten(g)  z = Gemm<transB = 1>(f, k) }"""


@dataclass(frozen=True)
class Parts:
    """A detector of one image and a reader, in a folder."""

    detector: Path
    reader: Path

    @property
    def joined(self) -> Path:
        return self.detector.with_name("joined.onnx")


def parts(folder: Path, reader: str = READER, opset: int = 18) -> Parts:
    made = Parts(folder / "detector.onnx", folder / "reader.onnx")
    onnx.save(suppressed("apart"), made.detector)
    onnx.save(onnx_text.model(reader, opset=opset), made.reader)
    return made


def test_reader_reads_every_box_and_gives_the_class(tmp_path: Path) -> None:
    import torch
    from torchvision.ops import roi_align

    made = parts(tmp_path)
    found = join_models(made.detector, made.reader, made.joined, "boxes", "labels")
    assert found.outputs == {"boxes": "float[k, 4]", "scores": "float[k]", "labels": "int64[k]", "z": "float[k, 6]"}
    image = images(1)
    boxes, scores, labels, z = open_session(made.joined).run(None, {"images": image})
    alone = open_session(made.detector).run(None, {"images": image})
    assert len(boxes) > 3
    assert np.array_equal(boxes, alone[0])
    assert np.array_equal(scores, alone[1])
    assert np.array_equal(labels, z.argmax(axis=1))
    crop = roi_align(torch.from_numpy(image), [torch.from_numpy(boxes)], 16, sampling_ratio=2, aligned=True).numpy()
    assert np.allclose(open_session(made.reader).run(None, {"x": crop})[0], z, rtol=1e-3, atol=1e-3)


LINES = READER.replace("float[n,6]", "float[n,7,6]").replace("float[6,8] k", "float[8,42] k, int64[3] s = {0, 7, 6}")
LINES = LINES.replace("z = Gemm<transB = 1>(f, k)", "m = MatMul(f, k)  t = Tanh(m)  z = Reshape(t, s)")


@pytest.mark.parametrize(("reader", "edge"), [(READER, "left"), (READER, "top"), (LINES, "top")])
def test_boxes_are_read_in_order_as_one_text(tmp_path: Path, reader: str, edge: str) -> None:
    made = parts(tmp_path, reader)
    found = join_models(made.detector, made.reader, made.joined, "boxes", text=edge)
    assert next(iter(found.outputs.items())) == ("text", "int64[1, characters]")
    text, boxes, *_, z = open_session(made.joined).run(None, {"images": images(1)})
    assert len(boxes) > 3
    best = z.argmax(axis=-1)[np.argsort(boxes[:, ("left", "top").index(edge)], kind="stable")]
    expected = best.tolist()
    if best.ndim == 2:  # the best path of each line
        pairs = [(row[i - 1] if i else 0, row[i]) for row in expected for i in range(7)]
        expected = [now - 1 for before, now in pairs if now not in (0, before)]
    assert text.tolist() == [expected]


def test_image_without_boxes_has_an_empty_text(tmp_path: Path) -> None:
    made = parts(tmp_path)
    onnx.save(suppressed("apart", most=0), made.detector)
    join_models(made.detector, made.reader, made.joined, "boxes", text="left")
    assert open_session(made.joined).run(["text"], {"images": images(1)})[0].shape == (1, 0)


def test_text_of_several_images_at_once_is_refused(tmp_path: Path) -> None:
    made = parts(tmp_path)
    text = f"d (float[n,3,{SIDE},{SIDE}] images, float[n,5,4] b) => (float[n,5,4] boxes) {{ boxes = Identity(b) }}"
    onnx.save(onnx_text.model(text), made.detector)
    with pytest.raises(ConfigError, match="--text needs boxes of one image"):
        join_models(made.detector, made.reader, made.joined, "boxes", text="left")


def test_image_without_boxes_gives_no_rows(tmp_path: Path) -> None:
    made = parts(tmp_path)
    onnx.save(suppressed("apart", most=0), made.detector)
    found = join_models(made.detector, made.reader, made.joined, "boxes")
    assert found.not_compared == "on random inputs the detector finds nothing"
    boxes, *_, z = open_session(made.joined).run(None, {"images": images(1)})
    assert (boxes.shape, z.shape) == ((0, 4), (0, 6))


def test_boxes_of_several_images_keep_their_axes(tmp_path: Path) -> None:
    made = parts(tmp_path)
    text = (
        f"d (float[n,3,{SIDE},{SIDE}] images, float[n,5,4] given) => (float[n,5,4] boxes) {{ boxes = Identity(given) }}"
    )
    onnx.save(onnx_text.model(text), made.detector)
    join_models(made.detector, made.reader, made.joined, "boxes")
    batch, boxes = images(3), np.random.default_rng(0).uniform(0, SIDE / 2, (3, 5, 4)).astype(np.float32)
    boxes[..., 2:] += boxes[..., :2] + 1
    session = open_session(made.joined)
    together = session.run(["z"], {"images": batch, "given": boxes})[0]
    alone = [session.run(["z"], {"images": batch[i : i + 1], "given": boxes[i : i + 1]})[0] for i in range(3)]
    assert together.shape == (3, 5, 6)
    assert np.allclose(together, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize(
    ("reader", "opset", "boxes", "message"),
    [
        (READER, 18, "edges", "no output 'edges'; available: boxes, scores, labels"),
        (READER, 17, "boxes", "Fix: export both with one"),
        (
            READER.replace("n,3,16", "n,1,16").replace("8,3,3,3", "8,1,3,3"),
            18,
            "boxes",
            "takes 1 channels, the detector 3",
        ),
        (READER.replace("n,3,16,16", "1,3,16,16"), 18, "boxes", "Fix: export it for an open batch"),
        (READER.replace("n,3,16,16", "n,3,h,w"), 18, "boxes", "and one size of images"),
        ("r (float[n,4] x) => (float[n,4] z) { z = Relu(x) }", 18, "boxes", "one input of images"),
    ],
)
def test_models_that_do_not_fit_are_refused(tmp_path: Path, reader: str, opset: int, boxes: str, message: str) -> None:
    made = parts(tmp_path, reader, opset)
    with pytest.raises(ConfigError, match=message):
        join_models(made.detector, made.reader, made.joined, boxes)
    assert not made.joined.exists()


def test_model_that_differs_from_the_two_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = parts(tmp_path)
    text = f"""d (float[n,3,{SIDE},{SIDE}] images) => (float[n,1,4] boxes) <float[1,1,4] b = {{0,0,9,9}}> {{
      s = Shape<end = 1>(images) o = Constant<value = int64[2] {{1, 1}}>() t = Concat<axis = 0>(s, o)
      boxes = Tile(b, t) }}"""
    onnx.save(onnx_text.model(text), made.detector)
    assert not join_models(made.detector, made.reader, made.joined, "boxes").not_compared
    made.joined.unlink()
    attach: Callable[..., None] = module._attach

    def spoiled(whole: onnx.ModelProto, part: onnx.GraphProto, prefix: str, feeds: list[str]) -> None:
        attach(whole, part, prefix, feeds)
        for tensor in whole.graph.initializer:
            if tensor.name == "reader/k":
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) + 1, tensor.name))

    monkeypatch.setattr(module, "_attach", spoiled)
    with pytest.raises(StageError, match="reader/z differs"):
        join_models(made.detector, made.reader, made.joined, "boxes")
    assert not made.joined.exists()


CELL, CELLS = 16, 3
FINDER = f"""finder (float[1,1,{CELL * CELLS},{CELL * CELLS}] image)
  => (float[k,4] boxes, float[k] scores, int64[k] labels)
  <float[9,4] grid, int64[1] first = {{0}}, int64[1] most = {{9}}, float[1] overlap = {{0.5}},
   float[1] least = {{0.4}}, int64 place = {{2}}, int64 label = {{1}}, int64[3] rows = {{1, 1, 9}},
   float half = {{0.5}}> {{
    a = Mul(image, half)  b = Add(a, half)  brightest = MaxPool<kernel_shape = [16, 16], strides = [16, 16]>(b)
    all = Reshape(brightest, rows)  corners = Unsqueeze(grid, first)
    chosen = NonMaxSuppression(corners, all, most, overlap, least)
    places = Gather<axis = 1>(chosen, place)  labels = Gather<axis = 1>(chosen, label)
    boxes = Gather<axis = 0>(grid, places)  scores = GatherND(all, chosen) }}"""
"""A detector of bright cells, all of one class; pixels are from -1 to 1."""


def scene(digits: np.ndarray, chosen: list[tuple[int, int]]) -> Image.Image:
    """Draw digits in some of the nine cells: pairs of a cell and a digit's number."""
    pixels = np.zeros((CELL * CELLS, CELL * CELLS), np.uint8)
    for cell, number in chosen:
        row, column = CELL * (cell // CELLS), CELL * (cell % CELLS)
        pixels[row : row + CELL, column : column + CELL] = np.kron(digits[number], np.ones((2, 2))) * 15
    return Image.fromarray(pixels)


def pipeline(folder: Path, *, shift: int = 0, words: tuple[str, ...] = ("--classes", "labels")) -> Path:
    """Join the finder and a trained reader of digits, whose classes are shifted."""
    digits = load_digits()
    crops = np.kron(digits.images, np.ones((1, 2, 2))).reshape(len(digits.images), -1) * 15 / 127.5 - 1
    learned = LogisticRegression(C=0.05, max_iter=300).fit(crops[:1000], digits.target[:1000])
    layers = "{ f = Flatten(x) m = MatMul(f, w) z = Add(m, b) }"
    text = f"r (float[n,1,16,16] x) => (float[n,10] z) <float[256,10] w, float[10] b> {layers}"
    weights = {"w": np.roll(learned.coef_, shift, 0).T.astype(np.float32), "b": np.roll(learned.intercept_, shift)}
    weights["b"] = weights["b"].astype(np.float32)
    grid = [(CELL * x, CELL * y, CELL * (x + 1), CELL * (y + 1)) for y in range(CELLS) for x in range(CELLS)]
    onnx.save(onnx_text.model(FINDER, {"grid": np.array(grid, np.float32)}), folder / "finder.onnx")
    onnx.save(onnx_text.model(text, weights), folder / "reader.onnx")
    files = ("finder.onnx", "reader.onnx", "pipeline.onnx", "--boxes", "boxes", *words)
    done = called(folder, "join", *files)
    assert done.returncode == 0, done.stderr
    return folder / "pipeline.onnx"


def scenes(folder: Path) -> Path:
    """Write 60 scenes of digits that the reader has not seen, with their boxes as YOLO's."""
    digits, rng = load_digits(), np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    (folder / "data.yaml").write_text(f"names: {[str(digit) for digit in range(10)]}\n")
    for number in range(60):
        chosen = [(int(c), int(rng.integers(1000, 1797))) for c in rng.permutation(9)[: rng.integers(2, 6)]]
        scene(digits.images, chosen).save(folder / "images" / f"{number}.png")
        centers = [((c % CELLS + 0.5) / CELLS, (c // CELLS + 0.5) / CELLS) for c, _ in chosen]
        lines = [
            f"{digits.target[digit]} {x} {y} {1 / CELLS} {1 / CELLS}"
            for (_, digit), (x, y) in zip(chosen, centers, strict=True)
        ]
        (folder / "labels" / f"{number}.txt").write_text("\n".join(lines))
    return folder


def judged(folder: Path, run: Callable[[PipelineConfig], RunReport], *, shift: int) -> RunReport:
    """Run the pipeline on the scenes."""
    model = pipeline(folder, shift=shift)
    found = infer_config(model, folder / "scenes", None, {})
    assert found.values["data"]["decode"]["classes"] == "labels"
    settings = (*SHORT, "data.mean=[0.5]", "data.std=[0.5]", "evaluate.min_score=0.6", "optimize=[]")
    return run(validated(model, found.values, (*settings, "quantize=[{kind: dynamic}]")))


@pytest.mark.nightly
def test_scene_is_read_from_image_to_text_by_one_bundle(
    run: Callable[[PipelineConfig], RunReport], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenes(tmp_path / "scenes")
    stopped = judged(tmp_path, run, shift=1)
    assert (stopped.stopped_at, "evaluate.min_score" in stopped.reason) == ("evaluate", True)
    report = judged(tmp_path, run, shift=0)
    assert (report.verdict, report.metric) == ("passed", "map"), report.reason
    bundle, numbers = tmp_path / "reader.zip", (1700, 1701, 1702)
    assert main(["bundle", "--out", str(bundle)]) == 0
    digits = load_digits()
    scene(digits.images, list(zip((1, 4, 8), numbers, strict=True))).save(tmp_path / "new.png")
    expected = [int(digits.target[number]) for number in numbers]
    capsys.readouterr()
    assert main(["predict", str(bundle), str(tmp_path / "new.png"), "--json"]) == 0
    boxes = json.loads(capsys.readouterr().out)["prediction"]["boxes"]
    assert [int(box["label"]) for box in sorted(boxes, key=lambda box: box["top"])] == expected
    pixels = np.asarray(Image.open(tmp_path / "new.png"), np.float32)[None, None] / 127.5 - 1
    with serving(tmp_path, bundle) as server:
        answer = server.post("/v2/models/pipeline/infer", json_request({"image": pixels}))
    outputs = {output["name"]: output["data"] for output in json.loads(answer.body)["outputs"]}
    assert outputs["labels"] == expected


@pytest.mark.slow
def test_line_of_digits_is_judged_by_the_edits_of_its_text_and_served(
    run: Callable[[PipelineConfig], RunReport], tmp_path: Path
) -> None:
    digits, rng = load_digits(), np.random.default_rng(0)
    lines = [(int(rng.integers(3)), rng.integers(1000, 1797, rng.integers(1, 4)).tolist()) for _ in range(150)]
    drawn = [scene(digits.images, [(CELLS * row + i, number) for i, number in enumerate(line)]) for row, line in lines]
    pixels = np.stack([np.asarray(image, np.float32)[None] / 127.5 - 1 for image in drawn])
    labels = np.array(["".join(str(digits.target[number]) for number in line) for _, line in lines])
    np.savez(tmp_path / "samples.npz", image=pixels, labels=labels)
    (tmp_path / "digits.txt").write_text("\n".join("0123456789"))
    settings = (*SHORT, "evaluate.min_score=0.6", "optimize=[]", "quantize=[{kind: dynamic}]")
    for shift in (1, 0):
        model = pipeline(tmp_path, shift=shift, words=("--text", "left"))
        values = infer_config(model, tmp_path / "samples.npz", tmp_path / "digits.txt", {}).values
        report = run(validated(model, values, settings))
        assert report.metric == "character_accuracy"
        assert (report.verdict, report.stopped_at) == ("failed" if shift else "passed", "evaluate" if shift else None)
        model.unlink()
    assert main(["bundle", "--out", str(tmp_path / "reader.zip")]) == 0
    read = []
    with serving(tmp_path, tmp_path / "reader.zip") as server:
        for image in pixels:
            answer = server.post("/v2/models/pipeline/infer", json_request({"image": image[None]}))
            read.append(
                "".join(str(n) for each in answer.json()["outputs"] if each["name"] == "text" for n in each["data"])
            )
    assert np.mean(np.array(read) == labels) > 0.7
