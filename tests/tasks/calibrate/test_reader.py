"""A reader of the user's own gives the ranges that the same samples give in a split, or one clear error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from PIL import Image

from gauntlet.calibration.methods import MinMax
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.errors import StageError
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.user_code import UserFunction
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import ArraySplit
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.calibrate.reader import read_batches

MODEL = "m (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> { h = MatMul(x, w) y = Relu(h) }"
SAMPLES = "samples = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)"


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], UserFunction]:
    name = f"reader_{abs(hash(request.node.name))}"  # modules of a process have different names

    def write(body: str) -> UserFunction:
        (tmp_path / f"{name}.py").write_text(f"import numpy as np\n{SAMPLES}\n{body}\n")
        return UserFunction(function=f"{name}:batches", code_folder=tmp_path)

    return write


GENERATOR = """
def batches():
    for start in range(0, 20, 8):
        yield {"x": samples[start : start + 8]}
"""
RUNTIMES = """
from onnxruntime.quantization import CalibrationDataReader
class batches(CalibrationDataReader):
    def __init__(self):
        self.feeds = iter([{"x": samples[start : start + 8]} for start in range(0, 20, 8)])
    def get_next(self):
        return next(self.feeds, None)
"""


@pytest.mark.parametrize("body", [GENERATOR, RUNTIMES], ids=["generator", "CalibrationDataReader"])
def test_reader_gives_the_ranges_of_its_samples(
    reader: Callable[[str], UserFunction], workspace: Callable[..., Workspace], body: str
) -> None:
    found = []
    config = CalibrateConfig(images=12)
    for given in (config.replace(reader=reader(body)), config):
        out = workspace()
        proto = onnx_text.model(MODEL)
        signature_from_graph(proto).write(proto)
        onnx.save(proto, out.folder / "model.onnx")
        samples = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
        split = out.store_file(ArraySplit({"x": samples}).save(out.folder, "calibration"))
        test = out.store_file(ArraySplit({"x": samples[15:] + 1}).save(out.folder, "test"))
        report = calibrate(
            given,
            out,
            model=out.store_file(out.folder / "model.onnx"),
            calibration=None if given.reader else split,
            test=test,
            methods=(MinMax(),),
            files=given.files(),
        )
        assert report.facts.images == 12
        found.append(Ranges.model_validate_json(out.path(report.artifacts["ranges"]).read_text()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def batches():\n    return iter([])", "yields nothing; yield arrays of x"),
        ("def batches():\n    return [samples]", "yields ndarray; expected a dictionary with arrays"),
        ("def batches():\n    return [{'z': samples}]", r"yields one of \['z'\]; expected a dictionary .* for x"),
        ("def batches():\n    return [{'x': 1.0}]", r"yields arrays of shape \{'x': \(\)\}"),
        (
            "def batches():\n    return [{'x': samples}, {'x': samples[:, 1:]}]",
            r"'x' in different sizes \(\(7,\), \(8,\)\)",
        ),
        ("def batches():\n    return 1 / 0", "fails: ZeroDivisionError"),
        ("other = 1", "has no function 'batches'"),
    ],
)
def test_reader_that_does_not_fit_is_one_clear_error(
    reader: Callable[[str], UserFunction], body: str, message: str
) -> None:
    with pytest.raises(StageError, match=message):
        read_batches(reader(body), signature_from_graph(onnx_text.model(MODEL)), 64)


def test_test_images_that_a_reader_yields_are_found_in_files(
    reader: Callable[[str], UserFunction], workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    rng, out = np.random.default_rng(0), workspace()
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(12):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(
                tmp_path / "images" / label / f"{number}.png"
            )
    test = ImageFolder(path=tmp_path / "images", image_size=8).load().splits["test"]
    np.save(tmp_path / "inputs.npy", test.take(slice(0, 3))["input"])
    proto = onnx_text.model("m (float[n,3,8,8] input) => (float[n,3,8,8] y) { y = Relu(input) }")
    signature_from_graph(proto).write(proto)
    onnx.save(proto, out.folder / "model.onnx")
    body = f"def batches():\n    yield {{'input': np.load({str(tmp_path / 'inputs.npy')!r})}}"
    report = calibrate(
        CalibrateConfig(reader=reader(body), strict=True),
        out,
        model=out.store_file(out.folder / "model.onnx"),
        calibration=None,
        test=out.store_file(test.save(out.folder, "test")),
        methods=(MinMax(),),
    )
    assert next(check.value for check in report.failures if check.name == "calibrate.test_overlap") == 3
