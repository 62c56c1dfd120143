"""The arithmetic of pairs, and kernels of every rank, against the plainest way to compute them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_text
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.core.arrays import Array
from wings.portability.saturation import Operand, SaturationError, WeightPairs, saturation
from wings.portability.simulation import SaturationSimulator

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))


def drawn(shape: tuple[int, int, int], seed: int, largest: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8]]:
    k, m, n = shape
    rng = np.random.default_rng(seed)
    a = rng.choice(np.array([0, 1, 127, 128, 200, 255], np.uint8), (k, m))
    w = rng.integers(-largest, largest, (k, n), endpoint=True).astype(np.int8)
    return a, w


def lost(a: npt.NDArray[np.uint8], w: npt.NDArray[np.int8]) -> SaturationError:
    return saturation(Operand(a, 1, a.max(axis=1).astype(np.int32)), WeightPairs.from_weights(w), w.shape[1])


def can_saturate(w: npt.NDArray[np.int8]) -> bool:
    return len(WeightPairs.from_weights(w)) > 0


def one_by_one(a: npt.NDArray[np.uint8], w: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int64], int]:
    """Sum pair by pair in Python's integers, each pair cut off at the ends of an int16."""
    sums, cut = np.zeros((w.shape[1], a.shape[1]), np.int64), 0
    for n, m in np.ndindex(*sums.shape):
        for first in range(0, len(a), 2):
            pair = sum(int(a[k, m]) * int(w[k, n]) for k in range(first, min(first + 2, len(a))))
            kept = min(max(pair, -32768), 32767)
            sums[n, m] += kept
            cut += kept != pair
    return sums, cut


@given(shape=SHAPES, seed=st.integers(0, 10**6))
def test_saturating_sums_are_those_of_pair_by_pair_addition(shape: tuple[int, int, int], seed: int) -> None:
    a, w = drawn(shape, seed, 127)
    expected, cut = one_by_one(a, w)
    loss = lost(a, w)
    error = 0 if loss.error is None else loss.error
    np.testing.assert_array_equal(w.T.astype(np.int64) @ a.astype(np.int64) + error, expected)
    assert (loss.saturated, loss.pairs) == (cut, -(-shape[0] // 2) * shape[1] * shape[2])


@given(shape=SHAPES, seed=st.integers(0, 10**6), largest=st.integers(1, 127))
def test_weights_that_cannot_saturate_never_do(shape: tuple[int, int, int], seed: int, largest: int) -> None:
    a, w = drawn(shape, seed, largest)
    full = np.full_like(a, 255)
    assert can_saturate(w) >= (lost(a, w).saturated > 0)
    alone = [
        lost(np.where(w[:, [n]] * sign > 0, full[:, :1], 0).astype(np.uint8), w[:, [n]])
        for n in range(shape[2])
        for sign in (1, -1)
    ]
    assert can_saturate(w) == any(loss.saturated for loss in alone)


RANKS = {"vector": (64,), "matrix": (64, 8), "stack": (4, 64, 8), "stack of stacks": (2, 1, 64, 8)}
SCALE = np.float32(0.01)


def weights(shape: tuple[int, ...], largest: int) -> npt.NDArray[np.int8]:
    return np.random.default_rng(0).choice(np.array([-largest, largest // 2, largest], np.int8), shape)


def network(folder: Path, text: str, **weights: Array) -> SaturationSimulator:
    onnx.save(onnx_text.model(text, weights, domains={"com.microsoft": 1}), folder / "model.onnx")
    return SaturationSimulator(folder / "model.onnx")


def static(folder: Path, w: npt.NDArray[np.int8]) -> SaturationSimulator:
    text = """
        static (uint8[] x) => (uint8[] y)
        <
            float x_scale = {0.01}, uint8 x_zero = {0},
            float w_scale = {0.01}, int8 w_zero = {0},
            float y_scale = {8}, uint8 y_zero = {120}
        >
        { [kernel] y = QLinearMatMul(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero) }
    """
    return network(folder, text, w=w)


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
def test_small_weights_are_known_not_to_saturate_when_they_have_any_rank(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    (kernel,) = static(tmp_path, weights(shape, 64)).kernels.values()
    assert not kernel.can_saturate


def test_saturation_is_predicted_when_a_stack_is_quantized_at_each_call(tmp_path: Path) -> None:
    w, bias = weights((4, 64, 8), 127), np.linspace(-1, 1, 8, dtype=np.float32)
    x = np.random.default_rng(1).uniform(-1, 5, (2, 4, 3, 64)).astype(np.float32)
    text = """
        dynamic (float[] x) => (float[] y)
        <float w_scale = {0.01}, int8 w_zero = {0}>
        { [kernel] y = com.microsoft.DynamicQuantizeMatMul(x, w, w_scale, w_zero, bias) }
    """
    found = network(tmp_path, text, w=w, bias=bias).run({"x": x})
    scale = (x.max() - x.min()) / 255
    zero = np.rint(-x.min() / scale)
    a = np.clip(np.rint(x / scale) + zero, 0, 255)
    sums = saturating_sums(a, w) - zero * w.astype(np.int64).sum(axis=-2, keepdims=True)
    np.testing.assert_allclose(found.saturating["y"], sums * scale * SCALE + bias, rtol=1e-4, atol=1e-3)
    assert np.abs(found.saturating["y"] - found.exact["y"]).max() > 1
