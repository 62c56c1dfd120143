"""The calibration set: finite, enough, of all classes, none of the test images, also from a user's own reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import COUNT, QUICK, Answer, images, network
from PIL import Image

from gauntlet.calibration.methods import MinMax
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.user_code import UserFunction
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import ArraySplit
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.calibrate.calibration_set import RangeChange, changes, convergence_check, read_batches


def check(report: Report[Any], name: str) -> Any:
    return next(c for c in report.checks if c.name == f"calibrate.{name}")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gate_fails_when_an_activation_is_no_number(answer: Callable[..., Answer], tmp_path: Path, bad: float) -> None:
    array = images(40)
    array[17, 0, 5, 5] = bad
    _, report = answer(network(tmp_path / "m.onnx"), array, *QUICK)
    failure = check(report, "non_finite_tensors")
    assert [c.name for c in report.failures] == [failure.name]
    assert failure.value >= 5
    assert failure.detail.startswith("NaN or infinity in x, c1, r1, ")


MISSING = "m = IsNaN(x) c = Where(m, zero, x) y = MatMul(c, w)"
MASKED = "h = MatMul(x, w) m = Less(h, zero) y = Where(m, low, h)"


@pytest.mark.parametrize(("nodes", "value", "named"), [(MISSING, np.nan, "x"), (MASKED, 0, "y")])
def test_missing_values_that_a_model_replaces_and_masks_only_warn(
    answer: Callable[..., Answer], tmp_path: Path, nodes: str, value: float, named: str
) -> None:
    text = f"m (float[n,8] x) => (float[n,4] y) <float[8,4] w, float low, float zero> {{ {nodes} }}"
    proto = onnx_text.model(text, {"low": -np.inf, "zero": 0})
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "m.onnx")
    array = np.random.default_rng(0).standard_normal((COUNT, 8)).astype(np.float32)
    array[::5, 3] = value
    _, report = answer(tmp_path / "m.onnx", array)
    warning = check(report, "non_finite_tensors")
    assert (warning.passed, warning.severity) == (False, "warning")
    assert f"NaN or infinity in {named} " in warning.detail
    assert report.facts.tensors > 0


def test_images_are_enough_when_the_second_half_adds_nothing(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), np.tile(images(8), (12, 1, 1, 1)), *QUICK)
    passed = check(report, "max_range_change")
    assert passed.passed
    assert passed.detail.startswith("96 samples are enough: from 48 of them, ")
    assert {(c.method, c.images) for c in report.facts.changes} == {(m.name, n) for m in QUICK for n in (48,)}


def test_ranges_have_not_converged_when_the_last_image_is_another(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    array = images()
    array[-1] *= 20
    _, report = answer(network(tmp_path / "m.onnx"), array)
    warning = check(report, "max_range_change")
    assert not warning.passed
    assert warning.detail.startswith("not converged at 96 samples: from 48 of them, the typical minmax range ")
    report.raise_if_blocked()  # it warns
    _, strict = answer(network(tmp_path / "m.onnx"), array, strict=True)
    assert [c.name for c in strict.failures] == ["calibrate.max_range_change"]


def test_ranges_have_not_converged_when_there_is_one_image(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), images(1), *QUICK)
    unknown = check(report, "max_range_change")
    assert (unknown.passed, unknown.value) == (False, None)
    assert unknown.detail == "not converged at 1 samples: too few to compare half of them with all"


@pytest.mark.parametrize(("method", "proposed"), [("minmax", True), ("percentile", False)])
def test_method_that_clips_outliers_is_proposed_to_one_that_does_not(method: str, proposed: bool) -> None:
    change = RangeChange(method=method, images=48, change=0.5, tensor="r1", typical=0.2)
    remedy = convergence_check((change,), 96, 96, "warning").remedy
    assert ("use a method that clips outliers" in remedy) == proposed


@pytest.mark.parametrize(("at_hand", "way"), [(300, "raise calibrate.images"), (96, "bring more samples")])
def test_more_samples_are_asked_for_only_where_all_are_used(at_hand: int, way: str) -> None:
    change = RangeChange(method="percentile", images=48, change=0.5, tensor="r1", typical=0.2)
    assert convergence_check((change,), 96, at_hand, "warning").remedy.startswith(way)


def test_one_range_that_still_grows_is_no_warning() -> None:
    def after(widest: float) -> Ranges:
        return Ranges(images=1, methods={"minmax": {"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, widest)}})

    check = convergence_check(changes({48: after(1.0), 96: after(2.0)}), 96, 96, "warning")
    assert check.passed
    assert "that of 'c' by 50.0%" in check.detail


def test_convergence_is_no_question_when_there_is_nothing_to_quantize(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    proto = onnx_text.model("exp (float[n,3,12,12] x) => (float[n,3,12,12] y) { y = Exp(x) }", opset=17)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "exp.onnx")
    _, report = answer(tmp_path / "exp.onnx", images(8), *QUICK, strict=True)
    assert report.facts.tensors == 0
    assert "calibrate.max_range_change" not in {c.name for c in report.checks}
    report.raise_if_blocked()


def test_coverage_fails_when_a_class_has_no_image_among_those_used(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    labels = np.repeat([0, 1, 2, 3], COUNT // 4)
    _, whole = answer(network(tmp_path / "m.onnx"), images(), labels=labels)
    assert check(whole, "missing_classes").passed
    _, half = answer(network(tmp_path / "m.onnx"), images(), labels=labels, images=48, strict=True)
    assert "calibrate.missing_classes" in {c.name for c in half.failures}
    assert check(half, "missing_classes").detail == "no calibration sample of c, d"


def test_overlap_fails_when_a_calibration_image_is_in_the_test_set(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    test = np.concatenate([images(5, seed=9), images()[70:71]])
    _, report = answer(network(tmp_path / "m.onnx"), images(), test=test, strict=True)
    assert "calibrate.test_overlap" in {c.name for c in report.failures}
    assert check(report, "test_overlap").detail == "calibration[70] is test[5]"
    _, few = answer(network(tmp_path / "m.onnx"), images(), test=test, images=64)  # image 70 is not used
    assert check(few, "test_overlap").passed


def test_overlap_is_found_in_the_splits_that_the_data_stage_keeps(trained) -> None:
    from gauntlet.datasets.audit import shared_samples

    calibration, test = (read_split(trained.store.path(trained.artifacts[n])) for n in ("calibration", "test"))
    assert shared_samples(calibration, test) == []
    assert shared_samples(test, test) == [(n, n) for n in range(len(test))]


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
