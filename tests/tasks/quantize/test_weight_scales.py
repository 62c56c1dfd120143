"""No two products that a kernel without VNNI adds in 16 bits overflow, and weights are no coarser than that needs."""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_text import model

from tasks.quantize.static import scales_without_overflow


def graph(node: str, weights: np.ndarray) -> onnx.GraphProto:
    shape = ",".join(map(str, weights.shape))
    return model(f"g (float[n] x) => (float[n] y) <float[{shape}] w> {{ {node} }}", {"w": weights}).graph


MATMUL, GEMM, TURNED = "y = MatMul(x, w)", "y = Gemm(x, w)", "y = Gemm<transB=1>(x, w)"


def conv(group: int) -> str:
    return f"y = Conv<group={group}>(x, w)"


def numbers(weights: np.ndarray, overrides: list[dict[str, Any]], axis: int) -> np.ndarray:
    """Quantize as ONNX Runtime does."""
    scales = np.array([one["scale"] for one in overrides])
    shape = [-1 if place == axis else 1 for place in range(weights.ndim)]
    return np.clip(np.rint(weights / scales.reshape(shape)), -128, 127).astype(int)


def sums_of_neighbors(column: np.ndarray) -> list[int]:
    """Return the largest sums in 16 bits that any bytes give, as the kernels walk through a channel."""
    pairs = [pair for place, pair in enumerate(pairwise([*column, 0])) if place % 2 == 0]
    return [255 * sum(max(sign * w, 0) for w in pair) for pair in pairs for sign in (1, -1)]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 6]), st.integers(1, 5), st.sampled_from([1, 3]))
def test_no_sum_exceeds_16_bits_whatever_the_weights(seed: int, group: int, channels: int, kernel: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.standard_t(1.5, (6, channels, kernel, kernel))  # a few are much larger than the others
    found = scales_without_overflow(graph(conv(group), weights), per_channel=True)["w"]
    for channel in numbers(weights.astype(np.float32), found, 0):
        if (group, channels) != (6, 1):
            assert max(sums_of_neighbors(channel.transpose(1, 2, 0).ravel())) <= 32767
    table = rng.standard_t(1.5, (channels * kernel, 4))
    for node, matrix, axis in ((MATMUL, table, 1), (GEMM, table, 1), (TURNED, table.T, 0)):
        found = scales_without_overflow(graph(node, matrix), per_channel=True)["w"]
        columns = np.moveaxis(numbers(matrix.astype(np.float32), found, axis), axis, 0)
        assert all(max(sums_of_neighbors(column)) <= 32767 for column in columns)


def test_only_channels_with_large_neighbors_get_coarser() -> None:
    weights = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    steps = [one["scale"] * 127 for one in scales_without_overflow(graph(MATMUL, weights.T), per_channel=True)["w"]]
    assert steps == pytest.approx([1, 2, 1, 127])  # nothing but zeros: any scale does
    [whole] = scales_without_overflow(graph(MATMUL, weights.T), per_channel=False)["w"]
    assert whole["scale"] * 127 == pytest.approx(2)


def test_depthwise_convolutions_keep_eight_bits() -> None:
    weights = np.ones((4, 1, 3, 3))
    depthwise, grouped = (graph(conv(group), weights) for group in (4, 1))
    [deep, whole] = (scales_without_overflow(g, per_channel=True)["w"][0]["scale"] for g in (depthwise, grouped))
    assert (deep * 127, whole * 127) == pytest.approx((1, 2))


def test_shared_weights_have_the_coarsest_scale_and_none_where_their_channels_differ() -> None:
    table = np.array([[1.0, 1.0], [0.0, 1.0]])
    same, other = f"a = MatMul(x, w) {GEMM}", f"a = MatMul(x, w) {TURNED}"
    found = scales_without_overflow(graph(same, table), per_channel=True)
    assert [one["axis"] for one in found["w"]] == [1, 1]
    assert scales_without_overflow(graph(other, table), per_channel=True) == {}
