"""Of a model that is too large for one message, a pass sees the graph; the weights stay in their file."""

from pathlib import Path
from typing import Literal

import onnx
import onnx_text
import pretrained_models
import pytest

from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.model_file import read_graph
from tasks.optimize.in_memory_pass import InMemoryPass, inputs_to_weights, weights_to_inputs
from tasks.optimize.verified_pass import ChainState, PassVerifier


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


class Breaks(InMemoryPass):
    """A pass that fails on every model, as optimizers do on operators that they do not know."""

    kind: Literal["breaks"] = "breaks"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        raise AttributeError("'NoneType' object has no attribute 'opset_import'")


@pytest.mark.parametrize(("domain", "outcome"), [("ai.onnx.ml", "unchanged"), ("other", "rejected")])
def test_graph_of_trees_alone_has_nothing_for_a_pass(tmp_path: Path, domain: str, outcome: str) -> None:
    graph = f"(float[n,2] x) => (float[n,2] y) {{ y = {domain}.Scaler(x) }}"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 3, opset_import: ["{domain}" : 1]> g {graph}'), tmp_path / "m.onnx"
    )
    verifier = PassVerifier(cases={}, numerics=Tolerances(), max_slowdown=0.1, signature=None)
    assert verifier.verify(Breaks(), tmp_path / "m.onnx", tmp_path / "after.onnx").outcome == outcome


def test_file_with_weights_is_kept_as_long_as_the_chains_model_names_it(tmp_path: Path) -> None:
    first, _ = pretrained_models.external_data(tmp_path)
    names = ("pass-0.onnx", "pass-1.onnx")
    model_file.copy_model(first, tmp_path / names[0])
    onnx.save(read_graph(tmp_path / names[0]), tmp_path / names[1])
    ChainState(pending=(), model=names[1]).tidy(tmp_path)
    assert {file.name for file in tmp_path.glob("pass-*")} == {"pass-0.onnx.data", "pass-1.onnx"}
