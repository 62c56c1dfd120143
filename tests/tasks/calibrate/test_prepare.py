"""The model that the quantiser gets: what ONNX Runtime takes apart there is put together again."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

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
