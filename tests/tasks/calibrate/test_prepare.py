"""The model that the quantiser gets: operators that came apart on the way are whole again."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.calibrate.prepare import prepare
from tasks.runtime.session import open_session

GATE = {"alpha": 1 / 6, "beta": 0.5}


def save(path: Path, nodes: list[onnx.NodeProto], opset: int) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    graph = helper.make_graph(nodes, "gates", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_hard_swish_stays_whole_and_answers_the_same(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("HardSwish", ["r"], ["y"])]
    model, prepared = save(tmp_path / "m.onnx", nodes, 18), tmp_path / "prepared.onnx"
    prepare(model, prepared)
    assert operators(prepared) == ["Relu", "HardSwish"]
    feed = {"x": np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)}
    np.testing.assert_array_equal(open_session(prepared).run(None, feed)[0], open_session(model).run(None, feed)[0])


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([helper.make_node("HardSigmoid", ["x"], ["s"], **GATE), helper.make_node("Mul", ["x", "s"], ["y"])], 13),
        ([helper.make_node("HardSigmoid", ["x"], ["s"]), helper.make_node("Mul", ["s", "x"], ["y"])], 18),
        ([helper.make_node("HardSigmoid", ["x"], ["s"], **GATE), helper.make_node("Mul", ["s", "s"], ["y"])], 18),
        ([helper.make_node("HardSigmoid", ["x"], ["s"], **GATE), helper.make_node("Add", ["x", "s"], ["y"])], 18),
        (
            [
                helper.make_node("HardSigmoid", ["x"], ["s"], **GATE),
                helper.make_node("Mul", ["x", "s"], ["m"]),
                helper.make_node("Add", ["m", "s"], ["y"]),
            ],
            18,
        ),
    ],
    ids=["before opset 14", "another slope", "no gate of x", "a sum", "read twice"],
)
def test_another_gate_is_no_hard_swish(tmp_path: Path, nodes: list[onnx.NodeProto], opset: int) -> None:
    prepare(save(tmp_path / "m.onnx", nodes, opset), tmp_path / "prepared.onnx")
    assert operators(tmp_path / "prepared.onnx") == [node.op_type for node in nodes]


def pooled(path: Path, nodes: list[onnx.NodeProto], rank: int = 4, opset: int = 18) -> Path:
    lengths: list[str | int | None] = ["batch", 3, 5, 5, 5]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, lengths[:rank])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    integers = {"axes": [2, 3], "last": [-1, -2], "one": [2], "back": [-1, 3, 1, 1], "copied": [0, -1, 1, 1]}
    integers |= {"rows": [-1, 1, 1, 1], "flat": [-1, 3]}
    constants = [numpy_helper.from_array(np.array(v, dtype=np.int64), name) for name, v in integers.items()]
    graph = helper.make_graph(nodes, "pool", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def mean(axes: str = "axes", keepdims: int = 0, output: str = "m") -> onnx.NodeProto:
    return helper.make_node("ReduceMean", ["relu", axes], [output], keepdims=keepdims)


def reshape(target: str = "back", output: str = "y") -> onnx.NodeProto:
    return helper.make_node("Reshape", ["m", target], [output])


RELU = helper.make_node("Relu", ["x"], ["relu"])


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([mean(), reshape()], 18),
        ([mean("last"), reshape("copied")], 18),
        ([mean(keepdims=1, output="y")], 18),
        ([helper.make_node("ReduceMean", ["relu"], ["m"], axes=[2, 3], keepdims=0), reshape()], 13),
    ],
    ids=["dropped and brought back", "counted from the end", "kept", "axes as an attribute"],
)
def test_mean_of_each_channel_is_a_pool_and_answers_the_same(
    tmp_path: Path, nodes: list[onnx.NodeProto], opset: int
) -> None:
    model, prepared = pooled(tmp_path / "m.onnx", [RELU, *nodes], opset=opset), tmp_path / "prepared.onnx"
    prepare(model, prepared)
    assert operators(prepared) == ["Relu", "GlobalAveragePool"]
    onnx.checker.check_model(onnx.load(prepared), full_check=True)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)}
    ours, theirs = (open_session(path).run(None, feed)[0] for path in (prepared, model))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "rank"),
    [
        ([mean("one"), helper.make_node("Neg", ["m"], ["y"])], 4),
        ([mean(), reshape("rows")], 4),
        ([mean(), reshape("flat")], 4),
        ([mean(), reshape(output="r"), helper.make_node("Sub", ["r", "m"], ["y"])], 4),
        ([mean(), reshape("back")], 5),
    ],
    ids=["one axis", "another shape", "no axes brought back", "read twice", "one spatial axis stays"],
)
def test_another_mean_is_no_pool(tmp_path: Path, nodes: list[onnx.NodeProto], rank: int) -> None:
    prepare(pooled(tmp_path / "m.onnx", [RELU, *nodes], rank), tmp_path / "prepared.onnx")
    assert "ReduceMean" in operators(tmp_path / "prepared.onnx")
