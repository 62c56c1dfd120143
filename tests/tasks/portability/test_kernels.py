"""Kernels of every rank: what saturates in them, against sums of pairs in plain NumPy."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.portability.simulate import Network

Array = npt.NDArray[np.generic]
RANKS = {"vector": (64,), "matrix": (64, 8), "stack": (4, 64, 8), "stack of stacks": (2, 1, 64, 8)}
SCALE = np.float32(0.01)


def weights(shape: tuple[int, ...], largest: int) -> npt.NDArray[np.int8]:
    return np.random.default_rng(0).choice(np.array([-largest, largest // 2, largest], np.int8), shape)


def network(folder: Path, kind: str, x_type: int, constants: dict[str, Array], domain: str = "") -> Network:
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", x_type, None)
    y = helper.make_tensor_value_info("y", TensorProto.UINT8 if kind == "QLinearMatMul" else TensorProto.FLOAT, None)
    nodes = [helper.make_node(kind, ["x", *constants], ["y"], "kernel", domain=domain)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    return Network(folder / "model.onnx")


def static(folder: Path, w: npt.NDArray[np.int8]) -> Network:
    zero = np.uint8(0)
    constants = {"x_scale": SCALE, "x_zero": zero, "w": w, "w_scale": SCALE, "w_zero": np.int8(0)}
    constants |= {"y_scale": np.float32(8), "y_zero": np.uint8(120)}
    return network(folder, "QLinearMatMul", TensorProto.UINT8, {n: np.asarray(v) for n, v in constants.items()})


def saturating_sums(a: Array, w: Array) -> npt.NDArray[np.int64]:
    """Return `a @ w` with each two neighbouring products added in an int16."""
    matrix = w[:, None] if w.ndim == 1 else w
    products = a.astype(np.int64)[..., None] * matrix.astype(np.int64)[..., None, :, :]  # (..., m, k, n)
    pairs = products.reshape(*products.shape[:-2], -1, 2, products.shape[-1]).sum(axis=-2)
    sums: npt.NDArray[np.int64] = np.clip(pairs, -(1 << 15), (1 << 15) - 1).sum(axis=-2)
    return sums[..., 0] if w.ndim == 1 else sums


@pytest.mark.parametrize("shape", RANKS.values(), ids=RANKS)
def test_saturation_is_predicted_when_weights_have_any_rank(tmp_path: Path, shape: tuple[int, ...]) -> None:
    w, a = weights(shape, 127), np.random.default_rng(1).integers(0, 256, (2, 4, 3, 64)).astype(np.uint8)
    found = static(tmp_path, w).run({"x": a})
    expected = np.clip(np.rint(saturating_sums(a, w) * (SCALE * SCALE / np.float32(8))) + 120, 0, 255)
    np.testing.assert_array_equal(found.saturating["y"], expected)
    assert (found.saturating["y"] != found.exact["y"]).any()


@pytest.mark.parametrize("shape", RANKS.values(), ids=RANKS)
def test_seven_bit_weights_are_known_not_to_saturate_when_they_have_any_rank(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    (kernel,) = static(tmp_path, weights(shape, 64)).kernels.values()
    assert kernel.seven_bit
    assert not kernel.can_saturate


def test_saturation_is_predicted_when_a_stack_is_quantised_at_each_call(tmp_path: Path) -> None:
    w, bias = weights((4, 64, 8), 127), np.linspace(-1, 1, 8, dtype=np.float32)
    x = np.random.default_rng(1).uniform(-1, 5, (2, 4, 3, 64)).astype(np.float32)
    constants = {"w": w, "w_scale": SCALE, "w_zero": np.int8(0), "bias": bias}
    given = {name: np.asarray(value) for name, value in constants.items()}
    found = network(tmp_path, "DynamicQuantizeMatMul", TensorProto.FLOAT, given, "com.microsoft").run({"x": x})
    scale = (x.max() - x.min()) / 255
    zero = np.rint(-x.min() / scale)
    a = np.clip(np.rint(x / scale) + zero, 0, 255)
    sums = saturating_sums(a, w) - zero * w.astype(np.int64).sum(axis=-2, keepdims=True)
    np.testing.assert_allclose(found.saturating["y"], sums * scale * SCALE + bias, rtol=1e-4, atol=1e-3)
    assert np.abs(found.saturating["y"] - found.exact["y"]).max() > 1
