"""Of a model that is too large for one message, a pass sees the graph; the weights stay in their file."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest

from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.model_file import external_locations, read_graph
from gauntlet.runtime.session import open_session
from tasks.optimize.graph_pass import GraphPass, OrtGraph, apply_pass
from tasks.optimize.in_memory_pass import inputs_to_weights, weights_to_inputs
from tasks.optimize.onnxscript import OnnxScript
from tasks.optimize.simplifiers import OnnxOptimizer, OnnxSim, OnnxSlim
from tasks.optimize.verified_pass import ChainState

PASSES = (OnnxSim(), OnnxSlim(), OnnxScript(), OnnxOptimizer(), OrtGraph(level="basic"))


@pytest.mark.parametrize("graph_pass", PASSES, ids=lambda p: p.name)
@pytest.mark.parametrize("target", ["after.onnx", "elsewhere/after.onnx"])
def test_large_model_is_simplified_and_its_weights_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph_pass: GraphPass, target: str
) -> None:
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)  # two gigabytes would say the same, slowly
    source, samples = pretrained_models.above_two_gigabytes(tmp_path, side=40)
    weights, path = tmp_path / "weights.bin", tmp_path / target
    path.parent.mkdir(exist_ok=True)
    before, stat = open_session(source).run(None, samples)[0], weights.stat()
    apply_pass(graph_pass, source, path)
    after = read_graph(path).graph
    assert [node.op_type for node in after.node] == ["MatMul", "MatMul"]
    assert [value.name for value in after.input] == ["x"]
    assert np.array_equal(open_session(path).run(None, samples)[0], before)
    onnx.checker.check_model(path, full_check=True)
    assert (weights.stat().st_mtime_ns, weights.stat().st_size) == (stat.st_mtime_ns, stat.st_size)
    own = isinstance(graph_pass, OrtGraph) or path.parent != tmp_path
    assert external_locations(read_graph(path)) == ["after.onnx.data" if own else "weights.bin"]


def test_weights_are_given_back_as_far_as_anything_reads_them() -> None:
    graph = onnx_text.model("""
        shared (float[2] x) => (float[2] y)
        <
            float[2] inner = ["location": "w.bin"],
            float[2] unread = ["location": "w.bin"],
            float[2] small = {1, 2}
        >
        {
            s = Add(x, small)
            y = If(yes) <
                then_branch = then () => (float[2] t) { t = Neg(inner) },
                else_branch = else () => (float[2] e) { e = Neg(inner) }
            >
        }
    """).graph
    weights = weights_to_inputs(graph)
    assert [tensor.name for tensor in weights] == ["inner", "unread"]
    assert [value.name for value in graph.input] == ["x", "inner", "unread"]
    assert [tensor.name for tensor in graph.initializer] == ["small"]
    inputs_to_weights(graph, weights)
    assert [value.name for value in graph.input] == ["x"]
    assert [tensor.name for tensor in graph.initializer] == ["small", "inner"]


def test_file_with_weights_is_kept_as_long_as_the_chains_model_names_it(tmp_path: Path) -> None:
    first, _ = pretrained_models.external_data(tmp_path)
    names = ("pass-0.onnx", "pass-1.onnx")
    model_file.copy_model(first, tmp_path / names[0])
    onnx.save(read_graph(tmp_path / names[0]), tmp_path / names[1])
    ChainState(pending=(), model=names[1]).tidy(tmp_path)
    assert {file.name for file in tmp_path.glob("pass-*")} == {"pass-0.onnx.data", "pass-1.onnx"}
