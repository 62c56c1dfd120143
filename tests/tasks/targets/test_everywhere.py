"""Every target that can be had on a machine without a GPU, really run: environments are installed once."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import faulty
import numpy as np
import onnx
import psutil
import pytest
from onnx import helper

from tasks.benchmark.client import WorkerClient
from tasks.benchmark.compare import Comparison, compare
from tasks.benchmark.contender import Plan
from tasks.benchmark.truth import Expected, Truth, examine
from tasks.errors import StageError
from tasks.targets import OpenVino, OrtCpu, OrtOpenVino, OrtWeb, TorchCompiled, TorchEager, environments
from tasks.targets.base import BaseTarget

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with both environments; `GAUNTLET_TEST_HOME` names one to keep between runs."""
    root = Path(os.environ.get("GAUNTLET_TEST_HOME") or tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAUNTLET_HOME", str(root))
        patch.setattr(environments, "TIMEOUT_S", 110)  # the test's own limit would make a failure of a slow network
        try:
            for name in environments.ENVIRONMENTS:
                environments.install(name, print)
        except StageError as error:
            pytest.skip(f"cannot be installed here: {error}")
        yield root


@pytest.fixture(scope="module")
def inputs(trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    np.savez(path, input=np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32))
    return path


@pytest.fixture(scope="module")
def expected(trained, inputs: Path) -> Expected:
    return Expected.of(trained.path, inputs, 60)


@pytest.fixture
def look(home, trained, inputs, expected):
    def examined(target: BaseTarget) -> Truth:
        why = target.unavailable()
        if why is not None:
            pytest.skip(why)
        model = trained.store.path(trained.artifacts["source"]) if target.sources else trained.path
        return examine(model, target, expected, inputs, threads=2, timeout_s=200)

    return examined


@pytest.mark.parametrize(
    "target",
    [OpenVino(), OpenVino(precision="bf16"), OrtOpenVino(), OrtWeb(), TorchEager(), TorchCompiled()],
    ids=lambda t: t.name,
)
def test_target_does_what_it_says(look, target: BaseTarget) -> None:
    truth = look(target)
    assert truth.reason is None
    assert truth.macs_share == 1
    assert truth.effective == target.stated


def test_silent_bfloat16_is_caught_and_named(look) -> None:
    """What OpenVINO does by itself on processors with bfloat16, told to do it on those without."""
    truth = look(OpenVino(precision="default", properties={"INFERENCE_PRECISION_HINT": "bf16"}))
    assert "f32 is stated, the answers show bf16" in (truth.reason or "")
    assert truth.kernels.keys() == {"bf16"}


def test_unpinned_openvino_passes_exactly_where_it_computes_in_float32(look) -> None:
    truth = look(OpenVino(precision="default"))
    assert (truth.reason is None) == (truth.kernels.keys() == {"f32"})


def test_quantised_model_runs_in_integers(home, trained, inputs, expected, tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        rest = iter([dict(np.load(inputs))])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    path = tmp_path / "int8.onnx"
    quantize_static(trained.path, path, Reader(), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    quantized = Expected.of(path, inputs, 60, expected)
    for target in (OpenVino(precision="int8"), OrtOpenVino(), OrtWeb()):
        truth = examine(path, target, quantized, inputs, threads=2, timeout_s=60)
        assert truth.reason is None, target.name
        assert truth.effective == ("int8" if target.kind == "openvino" else "unknown")
    float_model = examine(trained.path, OpenVino(precision="int8"), expected, inputs, threads=2, timeout_s=60)
    assert "target.integer_kernels: 0 must be >= 1" in (float_model.reason or "")


def test_all_of_them_race(home, trained, tmp_path: Path) -> None:
    targets = [OrtCpu(), OpenVino(), OrtOpenVino(), OrtWeb(), TorchEager()]
    samples = {"input": np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32)}
    plan = Plan(batch_sizes=(1, 4), rounds=6, block_ms=5, threads=1, timeout_s=100)
    source = trained.store.path(trained.artifacts["source"])
    found: Comparison = compare({"cnn": trained.path}, targets, samples, tmp_path, plan, source=source)
    here = {target.name for target in targets if target.unavailable() is None}
    assert {pair.target for pair in found.pairs if pair.status == "measured"} == here
    assert all(len(pair.rows) == 2 for pair in found.pairs if pair.status == "measured")
    assert not found.failed


def test_web_takes_half_floats_and_any_name(home, tmp_path: Path) -> None:
    name, out, half = "in?put#1/ü", "a & b=c", onnx.TensorProto.FLOAT16
    square = helper.make_node("Mul", [name, name], [out], "square")
    values = [[faulty.value(each, "n", 4, kind=half)] for each in (name, out)]
    proto = faulty.model([square], *values, [])
    onnx.save(proto, tmp_path / "half #1?.onnx")
    np.savez(tmp_path / "in.npz", **{name: np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4)})
    expected = Expected.of(tmp_path / "half #1?.onnx", tmp_path / "in.npz", 60)
    target = OrtWeb()
    if why := target.unavailable():
        pytest.skip(why)
    truth = examine(tmp_path / "half #1?.onnx", target, expected, tmp_path / "in.npz", threads=1, timeout_s=60)
    assert truth.error is None
    assert truth.sqnr_db > 57


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not on the PATH")
def test_no_browser_is_left_when_its_worker_is_killed(home, trained, inputs: Path) -> None:
    target = OrtWeb()
    with WorkerClient(target.command()) as worker:
        worker.load(trained.path, inputs, 1, 60, target.options())
        assert worker.run(2, 1, 60)["parity_db"] == float("inf")
        browsers = psutil.Process(worker._process.pid).children(recursive=True)
        assert len(browsers) > 1
    _, alive = psutil.wait_procs(browsers, timeout=10)
    assert alive == []
