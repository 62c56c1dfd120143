"""Every target that can be had on a machine without a GPU, really run: environments are installed once."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import needs
import numpy as np
import onnx
import onnx_text
import pytest
from calibration_feeds import Feeds
from processors import AS_HASWELL, HASWELL, needs_haswell, with_largest_weights
from runtime_environments import home_with

from gauntlet.race.contender import Entry, Plan
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.table import run_race
from gauntlet.race.target_validation import Validation, validate_target
from gauntlet.targets import OrtCpu, default_targets, environments
from gauntlet.targets.base import BaseTarget
from wings.providers.openvino import OpenVino, OrtOpenVino

pytestmark = pytest.mark.nightly

TORCH = [target for target in default_targets() if target.kind in ("torch-eager", "torch-compiled")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_with(["openvino"], tmp_path_factory.mktemp("home")) as root:
        yield root


@pytest.fixture(scope="module")
def inputs(trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    np.savez(path, input=np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32))
    return path


@pytest.fixture(scope="module")
def expected(trained, inputs: Path) -> ExpectedOutputs:
    return ExpectedOutputs.of(trained.path, inputs, 60)


@pytest.fixture
def look(home, trained, inputs, expected):
    def examined(target: BaseTarget) -> Validation:
        why = target.unavailable()
        if why is not None and "computes in" in why:
            pytest.skip(why)  # the processor lacks the instructions, which nothing can install
        if why is not None:
            needs.missing(why)
        model = trained.store.path(trained.artifacts["source"]) if target.model_suffixes else trained.path
        return validate_target(model, target, expected, inputs, threads=2, timeout_s=200)

    return examined


@pytest.mark.parametrize(
    "target", [OpenVino(), OpenVino(precision="bf16"), OrtOpenVino(), *TORCH], ids=lambda t: t.name
)
def test_target_does_what_it_says(look, target: BaseTarget) -> None:
    truth = look(target)
    assert truth.reason is None
    assert truth.macs_share == 1
    assert truth.effective == target.declared_precision


def test_silent_bfloat16_is_caught_and_named(look) -> None:
    """What OpenVINO does by itself on processors with bfloat16, told to do it on those without."""
    truth = look(OpenVino(precision="default", properties={"INFERENCE_PRECISION_HINT": "bf16"}))
    assert "f32 is stated, the outputs show bf16" in (truth.reason or "")
    assert truth.kernels.keys() == {"bf16"}


def test_unpinned_openvino_passes_exactly_where_it_computes_in_float32(look) -> None:
    truth = look(OpenVino(precision="default"))
    assert (truth.reason is None) == (truth.kernels.keys() == {"f32"})


@pytest.fixture(scope="module")
def int8(trained, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnxruntime.quantization import QuantType, quantize_static

    path = tmp_path_factory.mktemp("int8") / "int8.onnx"
    quantize_static(
        trained.path,
        path,
        Feeds([dict(np.load(inputs))]),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return path


def test_quantized_model_runs_in_integers(home, trained, inputs, expected, int8: Path) -> None:
    quantized = ExpectedOutputs.of(int8, inputs, 60, expected)
    for target in (OpenVino(precision="int8"), OrtOpenVino()):
        truth = validate_target(int8, target, quantized, inputs, threads=2, timeout_s=60)
        assert truth.reason is None, target.name
        assert truth.effective == ("int8" if target.kind == "openvino" else "unknown")
    float_model = validate_target(trained.path, OpenVino(precision="int8"), expected, inputs, threads=2, timeout_s=60)
    assert "target.integer_kernels: 0 must be >= 1" in (float_model.reason or "")


class OnHaswell(OpenVino):
    """On an emulated processor without VNNI."""

    def command(self) -> tuple[str, ...]:
        return (*AS_HASWELL, *super().command())


def test_quantized_model_runs_in_integers_when_their_sums_saturate(home, inputs, int8: Path) -> None:
    needs_haswell()
    saturating = with_largest_weights(int8)
    quantized, target = ExpectedOutputs.of(saturating, inputs, 60), OnHaswell(precision="int8")
    truth = validate_target(saturating, target, quantized, inputs, threads=1, timeout_s=200, processor=HASWELL)
    assert truth.quality_db < quantized.least_db
    assert (truth.reason, truth.effective) == (None, "int8")


OWN_MEMORY = """
from pathlib import Path
import numpy as np
from wings.providers.openvino_engine import load_engine
engine = load_engine(Path("sum.onnx"), 1, {"device": "CPU"})
x = np.arange(64, dtype=np.float32).reshape(8, 8)
read_only = np.frombuffer(x.tobytes(), np.float32).reshape(8, 8)
for given in (x, read_only, np.repeat(x, 2, axis=1)[:, ::2], x.astype(">f4")):
    call, fetch = engine.bind({"x": given, "z": 100 * read_only})
    others = [np.full((8, 8), 1e6, np.float32) for _ in range(50)]  # in memory that was given back, if any was
    [y] = fetch(call())
    assert np.array_equal(y, 101 * x), (given.flags, given.dtype, y)
"""


def test_openvino_reads_inputs_of_any_memory(home: Path, tmp_path: Path) -> None:
    onnx.save(
        onnx_text.model("m (float[n,8] x, float[n,8] z) => (float[n,8] y) { y = Add(x, z) }"), tmp_path / "sum.onnx"
    )
    command = (environments.python("openvino"), "-c", OWN_MEMORY)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_of_them_race(home, trained, inputs: Path) -> None:
    targets = [target for target in (OrtCpu(), OpenVino(), OrtOpenVino(), *TORCH[:1]) if target.unavailable() is None]
    plan = Plan(batch_sizes=(1, 4), rounds=6, block_ms=5, threads=1, timeout_s=100, restarts=False)
    source = trained.store.path(trained.artifacts["source"])
    entries = {t.name: Entry.on_target(source if t.model_suffixes else trained.path, t) for t in targets}
    table = run_race(entries, plan, "ort-cpu", inputs=inputs)
    assert not table.failures
    assert {name: len(rows) for name, rows in table.rows.items()} == dict.fromkeys(entries, 2)
