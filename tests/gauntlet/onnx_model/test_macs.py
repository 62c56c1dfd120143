"""Multiply-accumulates, counted in the kernels that ran, against counts by hand."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import quantized

from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, first_samples
from gauntlet.runtime.integer_share import IntegerShare, measure_integer_share
from tasks.quantize import quantize
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8

SMALL_CNN = 16 * 32 * 32 * 3 * 9 + 32 * 16 * 16 * 16 * 9 + 64 * 8 * 8 * 32 * 9 + 64 * 10


def sample(trained) -> dict[str, np.ndarray]:
    return first_samples(Golden.load(trained.store.path(trained.golden)).real.inputs, 1)


@pytest.fixture
def count(tmp_path: Path) -> Callable[..., IntegerShare]:
    """Return a function that counts the MACs of a few nodes from `x` to `y`."""

    def run(text: str, shape: list[int]) -> IntegerShare:
        x = ",".join(["batch", *map(str, shape[1:])])
        onnx.save(onnx_text.model(f"g (float[{x}] x) => (float[] y) {text}"), tmp_path / "m.onnx")
        return measure_integer_share(tmp_path / "m.onnx", {"x": np.ones(shape, np.float32)})

    return run


@pytest.mark.parametrize(
    ("text", "shape", "macs"),
    [
        ("<float[5,3,3,3] w> { [n] y = Conv<pads = [1, 1, 1, 1]>(x, w) }", [1, 3, 8, 8], 5 * 8 * 8 * 3 * 9),
        ("<float[8,1,3,3] w> { [n] y = Conv<group = 4>(x, w) }", [1, 4, 8, 8], 8 * 6 * 6 * 9),
        ("<float[3,2,2,2] w> { [n] y = Conv<strides = [2, 2]>(x, w) }", [1, 2, 8, 8], 3 * 4 * 4 * 2 * 4),
        ("<float[3,5,2,2] w> { [n] y = ConvTranspose<strides = [2, 2]>(x, w) }", [1, 3, 4, 4], 3 * 16 * 5 * 4),
        ("<float[4,6] w> { [n] y = MatMul(x, w) }", [1, 7, 4], 7 * 4 * 6),
        ("<float[4,6] w, float[6] b> { [n] y = Gemm(x, w, b) }", [1, 4], 4 * 6),
        ("<float[6,4] w> { [n] y = Gemm<transB = 1>(x, w) }", [1, 4], 4 * 6),
        ("<float[1,6] w> { [n] y = Gemm<transA = 1>(x, w) }", [1, 4], 4 * 6),
        ("{ [n] y = Relu(x) }", [1, 4], 0),
        ("{ [weights] c = Relu(x) [n] y = Conv(x, c) }", [5, 3, 8, 8], 5 * 5 * 3 * 64),
        ("{ [weights] c = Relu(x) [n] y = ConvTranspose(x, c) }", [3, 3, 4, 4], 3 * 3 * 16 * 3 * 16),
    ],
    ids=[
        *("conv", "grouped", "strided", "transposed conv", "matmul", "gemm", "gemm B'", "gemm A'", "none"),
        *("computed weights", "transposed computed weights"),
    ],
)
def test_macs_are_those_by_hand_when_there_is_one_float_node(
    count: Callable[..., IntegerShare], text: str, shape: list[int], macs: int
) -> None:
    counted = count(text, shape)
    assert counted.macs == macs
    assert (counted.float_nodes, counted.integer_nodes) == (bool(macs), 0)
    assert counted.share == 0 if macs else math.isnan(counted.share)


@pytest.mark.parametrize("names", [("", ""), ("same", "same"), ("one", "two")])
def test_macs_are_complete_when_nodes_have_no_names_of_their_own(
    count: Callable[..., IntegerShare], names: tuple[str, str]
) -> None:
    first, second = (f'["{name}"]' for name in names)
    text = f"""
        <float[4,6] w, float[6,5] v>
        {{
            {first} h = MatMul(x, w)
            {first} r = Relu(h)
            {second} y = MatMul(r, v)
        }}
    """
    counted = count(text, [1, 4])
    assert (counted.macs, counted.float_nodes) == (4 * 6 + 6 * 5, 2)


def test_share_is_zero_when_the_model_is_float(trained) -> None:
    counted = measure_integer_share(trained.path, sample(trained))
    assert counted == IntegerShare(share=0, macs=SMALL_CNN, float_nodes=4, integer_nodes=0, leftover_qdq_nodes=0)


def test_share_is_one_when_the_model_is_quantized_to_u8s8(trained, workspace: Callable[..., Workspace]) -> None:
    out = workspace(trained.store)
    report = quantized(StaticInt8(), out, trained.model, trained.artifacts["calibration"], trained.test)
    counted = measure_integer_share(out.path(report.artifacts["model"]), sample(trained))
    assert counted.share == 1.0
    assert (counted.macs, counted.integer_nodes, counted.float_nodes) == (SMALL_CNN, 4, 0)


@pytest.mark.parametrize("weights", ["u8", "s8"])
def test_share_is_one_when_activations_are_quantized_at_each_call(
    trained, workspace: Callable[..., Workspace], weights: str
) -> None:
    out = workspace(trained.store)
    recipe = DynamicInt8.model_validate({"weights": weights})
    report = quantize(recipe, out, model=trained.model)
    counted = measure_integer_share(out.path(report.artifacts["model"]), sample(trained))
    assert (counted.share, counted.macs) == (1.0, SMALL_CNN)
