"""Two graphs are the same when they compute the same in the same way, whatever things are called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.runtime.fingerprint import fingerprint, runs_as


def graph(weight: float = 2.0, names: Callable[[str], str] = str, *, swapped: bool = False) -> onnx.ModelProto:
    """Return y = relu(x * w) + sigmoid(x), with an If around a constant."""
    n = names
    value: Any = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    body = helper.make_graph([helper.make_node("Neg", [n("m")], [n("t")])], "then", [], [value(n("t"), 4)])
    other = helper.make_graph([helper.make_node("Abs", [n("m")], [n("e")])], "else", [], [value(n("e"), 4)])
    middle = [
        helper.make_node("Relu", [n("m")], [n("r")], n("relu")),
        helper.make_node("If", [n("c")], [n("i")], n("if"), then_branch=body, else_branch=other),
    ]
    nodes = [
        helper.make_node("Mul", ["x", n("w")], [n("m")], n("mul")),
        *(reversed(middle) if swapped else middle),
        helper.make_node("Add", [n("r"), n("i")], ["y"], n("add")),
    ]
    stored = [
        numpy_helper.from_array(np.full(4, weight, np.float32), n("w")),
        numpy_helper.from_array(np.array(True), n("c")),
    ]
    whole = helper.make_graph(nodes, "g", [value("x", 4)], [value("y", 4)], stored)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_fingerprint_is_the_same_when_only_names_or_the_order_differ() -> None:
    assert fingerprint(graph()) == fingerprint(graph(names=lambda name: f"other_{name}"))
    assert fingerprint(graph()) == fingerprint(graph(swapped=True))


def test_fingerprint_tells_weights_apart_only_when_they_count() -> None:
    assert fingerprint(graph(2.0)) != fingerprint(graph(3.0))
    assert fingerprint(graph(2.0), weights=False) == fingerprint(graph(3.0), weights=False)


def test_fingerprint_is_the_same_when_the_weights_lie_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(graph(), path, save_as_external_data=True, location="model.bin", size_threshold=0)
    beside = onnx.load(path, load_external_data=False)
    assert not any(tensor.raw_data for tensor in beside.graph.initializer)
    assert fingerprint(beside, tmp_path) == fingerprint(graph())
    (tmp_path / "model.bin").write_bytes(bytes((tmp_path / "model.bin").stat().st_size))
    assert fingerprint(beside, tmp_path) != fingerprint(graph())


def swap_inputs(model: onnx.ModelProto) -> None:
    node = model.graph.node[-1]
    node.op_type = "Sub"


def other_body(model: onnx.ModelProto) -> None:
    branch = next(n for n in model.graph.node if n.op_type == "If").attribute[0].g
    branch.node[0].op_type = "Exp"


def other_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "m"


def other_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute.add(name="extra", type=onnx.AttributeProto.INT, i=1)


def one_node_twice(model: onnx.ModelProto) -> None:
    model.graph.node.add(op_type="Relu", input=["m"], output=["unused"])


@pytest.mark.parametrize("change", [swap_inputs, other_body, other_output, other_attribute, one_node_twice])
def test_fingerprint_differs_when_the_graph_does(change: Callable[[onnx.ModelProto], None]) -> None:
    changed = graph()
    change(changed)
    assert fingerprint(changed) != fingerprint(graph())


def test_runtime_makes_the_same_graph_of_what_it_would_fold_itself(tmp_path: Path) -> None:
    plain, padded = graph(), graph()
    padded.graph.node[0].output[0] = "before"
    padded.graph.node.insert(1, helper.make_node("Identity", ["before"], ["m"]))
    assert fingerprint(plain) != fingerprint(padded)
    onnx.save(plain, tmp_path / "plain.onnx")
    onnx.save(padded, tmp_path / "padded.onnx")
    assert runs_as(tmp_path / "plain.onnx") == runs_as(tmp_path / "padded.onnx")
