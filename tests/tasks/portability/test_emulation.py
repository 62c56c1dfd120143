"""What is predicted, beside what a processor without VNNI, and an Arm one, really answer: both are emulated."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.errors import GateFailed, StageError
from tasks.portability import PortabilityFacts
from tasks.portability.emulate import Target, answers, state
from tasks.portability.simulate import Network
from tasks.report import Report
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session

Judge = Callable[..., Report[PortabilityFacts]]
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.slow


def needs(target: Target) -> None:
    if state(target).startswith("unavailable"):
        pytest.skip(f"{target} {state(target)}")


def weights(*shape: int) -> npt.NDArray[np.int8]:
    return np.clip(RNG.normal(0, 70, shape), -127, 127).astype(np.int8)


def pictures(*shape: int) -> npt.NDArray[np.uint8]:
    return np.clip(RNG.normal(150, 80, shape), 0, 255).astype(np.uint8)


KERNELS = {
    "3x3": (weights(32, 16, 3, 3), pictures(2, 16, 9, 9), {"pads": [1] * 4}),
    "odd channels": (weights(20, 3, 3, 3), pictures(2, 3, 9, 9), {"pads": [1] * 4, "strides": [2, 2]}),
    "1x1": (weights(32, 64, 1, 1), pictures(2, 64, 9, 9), {}),
    "groups": (weights(32, 8, 3, 3), pictures(2, 32, 9, 9), {"group": 4}),
    "dilated": (weights(7, 5, 5, 5), pictures(2, 5, 9, 9), {"dilations": [2, 2]}),
    "two outputs a channel": (weights(16, 1, 3, 3), pictures(2, 8, 9, 9), {"group": 8}),
    "automatic pads": (weights(9, 6, 4, 4), pictures(2, 6, 9, 9), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "depthwise": (weights(32, 1, 3, 3), pictures(2, 32, 9, 9), {"group": 32}),
    "matrix": (weights(301, 24), pictures(9, 301), {}),
    "vector": (weights(64, 10), pictures(1, 64), {}),
    "experts": (weights(4, 301, 24), pictures(2, 4, 9, 301), {}),
    "same rows for each expert": (weights(3, 64, 10), pictures(2, 1, 9, 64), {}),
}


def kernels() -> onnx.ModelProto:
    """Return all of them in one model, with outputs so fine that every lost step shows."""
    nodes, constants, inputs, outputs = [], {}, [], []
    for name, (matrix, x, attributes) in KERNELS.items():
        conv = matrix.ndim == 4
        channels = {4: matrix.shape[:1], 3: (len(matrix), 1, matrix.shape[-1]), 2: matrix.shape[1:]}[matrix.ndim]
        scales = RNG.uniform(0.001, 0.002, channels).astype(np.float32)
        own = {
            f"{name}/x_scale": np.float32(0.02),
            f"{name}/x_zero": np.uint8(7),
            f"{name}/w": matrix,
            f"{name}/w_scale": scales,
            f"{name}/w_zero": np.zeros_like(scales, np.int8),
            f"{name}/y_scale": np.float32(0.02 * 0.0015 * 127 * 20 * np.sqrt(matrix.size / scales.size)),
            f"{name}/y_zero": np.uint8(120),
        }
        kind = "QLinearConv" if conv else "QLinearMatMul"
        nodes.append(helper.make_node(kind, [f"{name}/x", *own], [f"{name}/y"], name=name, **attributes))
        inputs.append(helper.make_tensor_value_info(f"{name}/x", TensorProto.UINT8, x.shape))
        outputs.append(helper.make_tensor_value_info(f"{name}/y", TensorProto.UINT8, None))
        constants |= own
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "kernels", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_every_kernel_is_predicted_to_the_bit_when_it_saturates(tmp_path: Path) -> None:
    needs("x86-avx2")
    path = tmp_path / "kernels.onnx"
    onnx.save(kernels(), path)
    inputs = {f"{name}/x": x for name, (_, x, _) in KERNELS.items()}
    samples = calls(open_session(path), {name: x[None] for name, x in inputs.items()})
    emulated = answers("x86-avx2", path, samples, batch=1, timeout_s=60)
    found = Network(path).run(inputs)
    predicted, exact = found.saturating, found.exact
    assert found.losses.keys() == KERNELS.keys() - {"depthwise"}
    for name in KERNELS:
        np.testing.assert_array_equal(emulated[f"{name}/y"][0], predicted[f"{name}/y"], err_msg=name)
        assert (predicted[f"{name}/y"] != exact[f"{name}/y"]).any() == (name != "depthwise"), name


ON_HASWELL = """
import sys
import numpy as np
from pathlib import Path
from tasks.portability.simulate import Network
from tasks.runtime.processor import Processor

found = Network(Path(sys.argv[1]), Processor("x86_64", frozenset({"avx2"}))).run(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **found.exact)
"""


def test_exact_sums_are_exact_on_a_processor_that_saturates(tmp_path: Path) -> None:
    needs("x86-avx2")
    path, inputs, outputs = (tmp_path / name for name in ("kernels.onnx", "inputs.npz", "outputs.npz"))
    onnx.save(kernels(), path)
    given = {f"{name}/x": x for name, (_, x, _) in KERNELS.items()}
    np.savez(inputs, **given)
    command = ["qemu-x86_64", "-cpu", "Haswell", sys.executable, "-c", ON_HASWELL, str(path), str(inputs), str(outputs)]
    subprocess.run(command, check=True, timeout=240)
    here = Network(path).run(given).exact
    with np.load(outputs) as there:
        for name in here:
            np.testing.assert_array_equal(there[name], here[name], err_msg=name)


def test_model_built_to_saturate_loses_what_was_predicted_and_its_seven_bit_form_nothing(
    twins: object, judge: Judge
) -> None:
    needs("x86-avx2")
    options = {"samples": 96, "images": 96, "emulate": ["x86-avx2"], "max_accuracy_drop": 0.01}
    full, seven_bit = judge(twins.full, **options), judge(twins.seven_bit, **options)
    prediction, emulated = full.facts.prediction, full.facts.emulated[0]
    assert prediction is not None
    assert (prediction.samples, emulated.images) == (96, 96)
    assert emulated.drop > 0.05
    assert abs(emulated.accuracy - prediction.accuracy) <= 1 / 96
    assert abs(emulated.sqnr_db - prediction.sqnr_db) < 0.2
    with pytest.raises(GateFailed, match=r"portability.max_accuracy_drop: 0\.\d+ must be <= 0.01; 96 test images as"):
        full.enforce()
    assert abs(seven_bit.facts.emulated[0].drop) <= 1 / 96
    seven_bit.enforce()


def test_model_that_needs_vnni_is_right_on_arm(twins: object, judge: Judge) -> None:
    needs("arm64")
    report = judge(twins.full, images=32, emulate=["arm64"])
    assert report.facts.verdict == "needs VNNI"
    assert report.facts.emulated[0].drop == 0
    assert report.facts.emulated[0].sqnr_db > 30
    report.enforce()


def test_emulation_that_takes_too_long_is_told_and_stops_nothing(twins: object, judge: Judge) -> None:
    needs("x86-avx2")
    report = judge(twins.seven_bit, emulate=["x86-avx2"], timeout_s=0.1)
    report.enforce()
    assert report.facts.emulated[0].images == 0
    told = next(c for c in report.checks if c.name == "portability.unavailable")
    assert not told.passed
    assert "x86-avx2 unavailable: no answer within 0.1 s; raise portability.timeout_s" in told.detail


def test_emulation_that_dies_is_an_error_in_one_line(tmp_path: Path) -> None:
    needs("x86-avx2")
    path = tmp_path / "kernels.onnx"
    onnx.save(kernels(), path)
    samples = calls(open_session(path), {f"{name}/x": x[None] for name, (_, x, _) in KERNELS.items()})
    path.write_bytes(b"damaged")
    with pytest.raises(StageError, match=r"x86-avx2 ended with code 1: .*Protobuf parsing failed"):
        answers("x86-avx2", path, samples, batch=1, timeout_s=60)
