"""Predictions against the outputs of emulated processors: x86 without VNNI, and Arm."""

from collections.abc import Callable
from pathlib import Path

import needs
import numpy as np
import numpy.typing as npt
import onnx
import onnx_text
import pytest
from processors import needs_haswell, on_haswell

from gauntlet.core.errors import GateFailed, StageError
from gauntlet.core.report import Report
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from wings.portability import PortabilityFacts
from wings.portability.emulation import emulated_outputs, emulator_status
from wings.portability.simulation import SaturationSimulator

Judge = Callable[..., Report[PortabilityFacts]]
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.nightly


def weights(*shape: int) -> npt.NDArray[np.int8]:
    return np.clip(RNG.normal(0, 70, shape), -127, 127).astype(np.int8)


def activations(*shape: int) -> npt.NDArray[np.uint8]:
    return np.clip(RNG.normal(150, 80, shape), 0, 255).astype(np.uint8)


KERNELS = {
    "3x3": (weights(32, 16, 3, 3), activations(2, 16, 9, 9), "<pads = [1, 1, 1, 1]>"),
    "odd channels": (weights(20, 3, 3, 3), activations(2, 3, 9, 9), "<pads = [1, 1, 1, 1], strides = [2, 2]>"),
    "1x1": (weights(32, 64, 1, 1), activations(2, 64, 9, 9), ""),
    "groups": (weights(32, 8, 3, 3), activations(2, 32, 9, 9), "<group = 4>"),
    "dilated": (weights(7, 5, 5, 5), activations(2, 5, 9, 9), "<dilations = [2, 2]>"),
    "two outputs a channel": (weights(16, 1, 3, 3), activations(2, 8, 9, 9), "<group = 8>"),
    "automatic pads": (weights(9, 6, 4, 4), activations(2, 6, 9, 9), '<auto_pad = "SAME_UPPER", strides = [2, 2]>'),
    "depthwise": (weights(32, 1, 3, 3), activations(2, 32, 9, 9), "<group = 32>"),
    "matrix": (weights(301, 24), activations(9, 301), ""),
    "vector": (weights(64, 10), activations(1, 64), ""),
    "experts": (weights(4, 301, 24), activations(2, 4, 9, 301), ""),
    "same rows for each expert": (weights(3, 64, 10), activations(2, 1, 9, 64), ""),
}


def kernels() -> onnx.ModelProto:
    """Return all of them in one model, with outputs so fine that every lost step shows."""
    nodes, inputs, constants = [], [], {}
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
        kind = f"QLinearConv{attributes}" if conv else "QLinearMatMul"
        read = ", ".join(f'"{each}"' for each in (f"{name}/x", *own))
        nodes.append(f'["{name}"] "{name}/y" = {kind}({read})')
        inputs.append(f'uint8{list(x.shape)} "{name}/x"')
        constants |= own
    outputs = ", ".join(f'uint8[] "{name}/y"' for name in KERNELS)
    return onnx_text.model(f"kernels ({', '.join(inputs)}) => ({outputs}) {{ {' '.join(nodes)} }}", constants)


def test_every_kernel_is_predicted_to_the_bit_when_it_saturates(tmp_path: Path) -> None:
    needs_haswell()
    path = tmp_path / "kernels.onnx"
    onnx.save(kernels(), path)
    inputs = {f"{name}/x": x for name, (_, x, _) in KERNELS.items()}
    samples = batched_inference(open_session(path), {name: x[None] for name, x in inputs.items()})
    emulated = emulated_outputs("x86-avx2", path, samples, batch=1, timeout_s=60)
    found = SaturationSimulator(path).run(inputs)
    predicted, exact = found.saturating, found.exact
    assert found.errors.keys() == KERNELS.keys() - {"depthwise"}
    for name in KERNELS:
        np.testing.assert_array_equal(emulated[f"{name}/y"][0], predicted[f"{name}/y"], err_msg=name)
        assert (predicted[f"{name}/y"] != exact[f"{name}/y"]).any() == (name != "depthwise"), name


EXACT = """
import sys
import numpy as np
from pathlib import Path
from wings.portability.simulation import SaturationSimulator
from gauntlet.runtime.processor import Processor

found = SaturationSimulator(Path(sys.argv[1]), Processor("x86_64", frozenset({"avx2"}))).run(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **found.exact)
"""


def test_exact_sums_are_exact_on_a_processor_that_saturates(tmp_path: Path) -> None:
    path, inputs, outputs = (tmp_path / name for name in ("kernels.onnx", "inputs.npz", "outputs.npz"))
    onnx.save(kernels(), path)
    given = {f"{name}/x": x for name, (_, x, _) in KERNELS.items()}
    np.savez(inputs, **given)
    on_haswell(EXACT, path, inputs, outputs)
    here = SaturationSimulator(path).run(given).exact
    with np.load(outputs) as there:
        for name in here:
            np.testing.assert_array_equal(there[name], here[name], err_msg=name)


def test_model_built_to_saturate_loses_what_was_predicted_and_its_reduced_form_nothing(
    twins: object, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_haswell()
    monkeypatch.setattr("wings.portability.PREDICTION_SAMPLES", 96)
    monkeypatch.setattr("wings.portability.EMULATION_IMAGES", 96)
    options = {"emulate": ["x86-avx2"], "max_accuracy_drop": 0.01}
    full, reduced = judge(twins.full, **options), judge(twins.reduced, **options)
    prediction, emulated = full.facts.prediction, full.facts.emulated[0]
    assert (prediction.samples, emulated.images) == (96, 96)
    assert abs(emulated.accuracy - prediction.accuracy) <= 1 / 96
    assert prediction.exact_accuracy - emulated.accuracy > 0.05
    if Processor.current().saturates:  # then it loses nothing there that it has not lost here
        assert abs(emulated.drop) <= 1 / 96
        full.raise_if_blocked()
    else:
        assert abs(emulated.accuracy_here - prediction.exact_accuracy) <= 1 / 96
        assert abs(emulated.sqnr_db - prediction.sqnr_db) < 0.2
        with pytest.raises(GateFailed, match=r"portability.max_accuracy_drop: 0\.\d+ must be <= 0.01; 96 test samples"):
            full.raise_if_blocked()
    assert abs(reduced.facts.emulated[0].drop) <= 1 / 96
    reduced.raise_if_blocked()


def test_model_that_needs_vnni_is_right_on_arm(twins: object, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    if (status := emulator_status("arm64")).startswith("unavailable"):
        needs.missing(f"arm64 {status}")
    monkeypatch.setattr("wings.portability.PREDICTION_SAMPLES", 32)  # as many as are emulated
    report = judge(twins.full, emulate=["arm64"])
    prediction, emulated = report.facts.prediction, report.facts.emulated[0]
    assert report.facts.verdict == "needs VNNI"
    assert emulated.accuracy == prediction.exact_accuracy
    assert Processor.current().saturates or emulated.sqnr_db > 30
    report.raise_if_blocked()


def test_emulation_that_takes_too_long_is_told_and_stops_nothing(twins: object, judge: Judge) -> None:
    needs_haswell()
    report = judge(twins.reduced, emulate=["x86-avx2"], timeout_s=0.1)
    report.raise_if_blocked()
    assert report.facts.emulated[0].images == 0
    told = next(c for c in report.checks if c.name == "portability.unavailable")
    assert not told.passed
    assert "x86-avx2 unavailable: timed out after 0.1 s; raise portability.timeout_s" in told.detail


def test_emulation_that_dies_is_an_error_in_one_line(tmp_path: Path) -> None:
    needs_haswell()
    path = tmp_path / "kernels.onnx"
    onnx.save(kernels(), path)
    samples = batched_inference(open_session(path), {f"{name}/x": x[None] for name, (_, x, _) in KERNELS.items()})
    path.write_bytes(b"damaged")
    with pytest.raises(StageError, match=r"x86-avx2 exited with code 1: .*Protobuf parsing failed"):
        emulated_outputs("x86-avx2", path, samples, batch=1, timeout_s=60)
