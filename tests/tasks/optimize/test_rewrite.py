"""Of a model that is too large for one message, a pass sees the graph; the weights stay in their file."""

from pathlib import Path

import brought_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tasks import model_file
from tasks.model_file import external_locations, read_graph
from tasks.optimize.graph_pass import GraphPass, apply_pass
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.rewrite import give_back, lend
from tasks.optimize.transaction import State
from tasks.runtime.session import open_session

PASSES = (OnnxSim(), OnnxSlim(), OnnxScript(), OnnxOptimizer(), OrtGraph(level="basic"))


@pytest.mark.parametrize("graph_pass", PASSES, ids=lambda p: p.name)
@pytest.mark.parametrize("target", ["after.onnx", "elsewhere/after.onnx"])
def test_large_model_is_simplified_and_its_weights_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph_pass: GraphPass, target: str
) -> None:
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)  # two gigabytes would say the same, slowly
    source, samples = brought_models.above_two_gigabytes(tmp_path, side=40)
    weights, path = tmp_path / "weights.bin", tmp_path / target
    path.parent.mkdir(exist_ok=True)
    before, told = open_session(source).run(None, samples)[0], weights.stat()
    apply_pass(graph_pass, source, path)
    after = read_graph(path).graph
    assert [node.op_type for node in after.node] == ["MatMul", "MatMul"]
    assert [value.name for value in after.input] == ["x"]
    assert np.array_equal(open_session(path).run(None, samples)[0], before)
    onnx.checker.check_model(path, full_check=True)
    assert (weights.stat().st_mtime_ns, weights.stat().st_size) == (told.st_mtime_ns, told.st_size)
    own = isinstance(graph_pass, OrtGraph) or path.parent != tmp_path
    assert external_locations(read_graph(path)) == ["after.onnx.data" if own else "weights.bin"]


def test_weights_are_given_back_as_far_as_anything_reads_them() -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    body = helper.make_graph([helper.make_node("Neg", ["inner"], ["b"])], "body", [], [value[1]])
    nodes = [
        helper.make_node("Add", ["x", "small"], ["s"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body),
    ]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    for name in ("inner", "unread", "small"):
        tensor = graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[2])
        if name == "small":
            tensor.float_data.extend([1, 2])
        else:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="w.bin")
    weights = lend(graph)
    assert [tensor.name for tensor in weights] == ["inner", "unread"]
    assert [value.name for value in graph.input] == ["x", "inner", "unread"]
    assert [tensor.name for tensor in graph.initializer] == ["small"]
    give_back(graph, weights)
    assert [value.name for value in graph.input] == ["x"]
    assert [tensor.name for tensor in graph.initializer] == ["small", "inner"]


def test_file_with_weights_is_kept_as_long_as_the_chains_model_names_it(tmp_path: Path) -> None:
    first, _ = brought_models.external_data(tmp_path)
    names = ("pass-0.onnx", "pass-1.onnx")
    model_file.copy_model(first, tmp_path / names[0])
    onnx.save(read_graph(tmp_path / names[0]), tmp_path / names[1])
    State(pending=(), model=names[1]).tidy(tmp_path)
    assert {file.name for file in tmp_path.glob("pass-*")} == {"pass-0.onnx.data", "pass-1.onnx"}
