"""Multiply-accumulates, counted in the kernels that ran, against counts by hand."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from recipes import quantized

from tasks.data.golden import Golden, head
from tasks.quantize import quantize
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.runtime.macs import IntegerShare, integer_share
from tasks.workspace import Workspace

SMALL_CNN = 16 * 32 * 32 * 3 * 9 + 32 * 16 * 16 * 16 * 9 + 64 * 8 * 8 * 32 * 9 + 64 * 10


def sample(trained) -> dict[str, np.ndarray]:
    return head(Golden.load(trained.store.path(trained.golden)).real.inputs, 1)


@pytest.fixture
def count(tmp_path: Path) -> Callable[..., IntegerShare]:
    """Return a function that counts the MACs of a few nodes from `x` to `y`."""

    def run(nodes: list[onnx.NodeProto], shape: list[int], **weights: tuple[int, ...]) -> IntegerShare:
        ones = [numpy_helper.from_array(np.ones(s, np.float32), name) for name, s in weights.items()]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape[1:]])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "g", [x], [y], ones)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        onnx.save(proto, tmp_path / "m.onnx")
        return integer_share(tmp_path / "m.onnx", {"x": np.ones(shape, np.float32)})

    return run


def node(kind: str, *inputs: str, output: str = "y", name: str = "n", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), [output], name, **attributes)


COMPUTED = node("Relu", "x", output="c", name="weights")
"""Weights that are no constants: the input itself."""


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "macs"),
    [
        ([node("Conv", "x", "w", pads=[1] * 4)], [1, 3, 8, 8], {"w": (5, 3, 3, 3)}, 5 * 8 * 8 * 3 * 9),
        ([node("Conv", "x", "w", group=4)], [1, 4, 8, 8], {"w": (8, 1, 3, 3)}, 8 * 6 * 6 * 9),
        ([node("Conv", "x", "w", strides=[2, 2])], [1, 2, 8, 8], {"w": (3, 2, 2, 2)}, 3 * 4 * 4 * 2 * 4),
        ([node("ConvTranspose", "x", "w", strides=[2, 2])], [1, 3, 4, 4], {"w": (3, 5, 2, 2)}, 3 * 16 * 5 * 4),
        ([node("MatMul", "x", "w")], [1, 7, 4], {"w": (4, 6)}, 7 * 4 * 6),
        ([node("Gemm", "x", "w", "b")], [1, 4], {"w": (4, 6), "b": (6,)}, 4 * 6),
        ([node("Gemm", "x", "w", transB=1)], [1, 4], {"w": (6, 4)}, 4 * 6),
        ([node("Gemm", "x", "w", transA=1)], [1, 4], {"w": (1, 6)}, 4 * 6),
        ([node("Relu", "x")], [1, 4], {}, 0),
        ([COMPUTED, node("Conv", "x", "c")], [5, 3, 8, 8], {}, 5 * 5 * 3 * 64),
        ([COMPUTED, node("ConvTranspose", "x", "c")], [3, 3, 4, 4], {}, 3 * 3 * 16 * 3 * 16),
    ],
    ids=[
        *("conv", "grouped", "strided", "transposed conv", "matmul", "gemm", "gemm B'", "gemm A'", "none"),
        *("computed weights", "transposed computed weights"),
    ],
)
def test_macs_are_those_by_hand_when_there_is_one_float_node(
    count: Callable[..., IntegerShare], nodes: list[onnx.NodeProto], shape: list[int], weights: dict, macs: int
) -> None:
    counted = count(nodes, shape, **weights)
    assert counted.macs == macs
    assert (counted.float_nodes, counted.integer_nodes) == (bool(macs), 0)
    assert counted.share == 0 if macs else math.isnan(counted.share)


@pytest.mark.parametrize("names", [("", ""), ("same", "same"), ("one", "two")])
def test_macs_are_complete_when_nodes_have_no_names_of_their_own(
    count: Callable[..., IntegerShare], names: tuple[str, str]
) -> None:
    chain = [
        node("MatMul", "x", "w", output="h", name=names[0]),
        node("Relu", "h", output="r", name=names[0]),
        node("MatMul", "r", "v", name=names[1]),
    ]
    counted = count(chain, [1, 4], w=(4, 6), v=(6, 5))
    assert (counted.macs, counted.float_nodes) == (4 * 6 + 6 * 5, 2)


def test_share_is_zero_when_the_model_is_float(trained) -> None:
    counted = integer_share(trained.path, sample(trained))
    assert counted == IntegerShare(share=0, macs=SMALL_CNN, float_nodes=4, integer_nodes=0, leftover_qdq_nodes=0)


def test_share_is_one_when_the_model_is_quantised_to_u8s8(trained, workspace: Callable[..., Workspace]) -> None:
    out = workspace(trained.store)
    report = quantized(StaticInt8(), out, trained.model, trained.artifacts["calibration"], trained.test)
    counted = integer_share(out.path(report.artifacts["model"]), sample(trained))
    assert counted.share == 1.0
    assert (counted.macs, counted.integer_nodes, counted.float_nodes) == (SMALL_CNN, 4, 0)


@pytest.mark.parametrize("weights", ["u8", "s8"])
def test_share_is_one_when_activations_are_quantised_at_each_call(
    trained, workspace: Callable[..., Workspace], weights: str
) -> None:
    out = workspace(trained.store)
    recipe = DynamicInt8.model_validate({"weights": weights})
    report = quantize(recipe, out, model=trained.model)
    counted = integer_share(out.path(report.artifacts["model"]), sample(trained))
    assert (counted.share, counted.macs) == (1.0, SMALL_CNN)
