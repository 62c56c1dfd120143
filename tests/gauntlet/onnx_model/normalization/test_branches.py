"""What decides in a graph: branches, fixed inputs, functions and the order of nodes."""

import numpy as np
import onnx
import onnx_text
import pytest
from normalized_models import outputs, same_outputs, sample_rates

from gauntlet.core.errors import ConfigError
from gauntlet.onnx_model.graph import all_nodes
from gauntlet.onnx_model.normalization.branches import fold_branches
from gauntlet.onnx_model.normalization.fixed_inputs import fix_inputs
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.normalization.tidy import inline_functions


def test_nodes_are_sorted_in_inner_graphs_as_well() -> None:
    proto = sample_rates()
    body = next(a.g for a in proto.graph.node[1].attribute if a.name == "then_branch")
    nodes = list(body.node)
    del body.node[:]
    body.node.extend(reversed(nodes))
    assert "If 'y' came before" in sort_nodes(proto)
    assert outputs(proto, sr=np.array(16000))  # the checker refuses unsorted nodes
    assert sort_nodes(proto) == ""


def test_node_is_put_behind_those_that_its_body_reads_from() -> None:
    proto = sample_rates()
    onnx_text.extend(proto, "{ scaled = Add(x, x) }")
    for node in all_nodes(proto.graph):
        if node.op_type == "MatMul":
            node.input[0] = "scaled"
    assert sort_nodes(proto)
    assert [node.op_type for node in proto.graph.node] == ["Equal", "Add", "If"]


def test_branch_that_an_input_decides_stays() -> None:
    proto = sample_rates()
    assert fold_branches(proto) == ""
    assert proto == sample_rates()


def test_condition_on_a_known_shape_is_constant() -> None:
    proto = onnx_text.model("""
        squeeze (float[n,16] x) => (float[n,?] y)
        <int64 axis = {1}, int64 one = {1}>
        {
            shape = Shape(x)
            size = Gather(shape, axis)
            single = Equal(size, one)
            y = If(single) <
                then_branch = a () => (float[n,?] t) { t = Neg(x) },
                else_branch = c () => (float[n,?] e) { e = Relu(x) }
            >
        }
    """)
    assert same_outputs(proto, fold_branches)
    assert [node.op_type for node in proto.graph.node][-1] == "Relu"


def test_nested_branches_fold_with_their_equal_names_kept_apart() -> None:
    proto = onnx_text.model("""
        nested (float[1,16] x) => (float[1,16] y)
        <bool yes = {1}, bool no = {0}>
        {
            u = If(yes) <
                then_branch = a () => (float[1,16] t) {
                    inner = Neg(x)
                    t = If(no) <
                        then_branch = b () => (float[1,16] r) { r = Relu(inner) },
                        else_branch = c () => (float[1,16] s) { s = Exp(inner) }
                    >
                },
                else_branch = d () => (float[1,16] e) { e = Abs(x) }
            >
            y = If(no) <
                then_branch = f () => (float[1,16] g) { g = Relu(u) },
                else_branch = h () => (float[1,16] k) { inner = Tanh(u) k = Add(inner, u) }
            >
        }
    """)
    assert "3 of 3" in same_outputs(proto, fold_branches)
    assert [node.op_type for node in proto.graph.node] == ["Neg", "Exp", "Tanh", "Add"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1}, "the model has no input 'rate'; available: 'x', 'sr'"),
        ({"sr": 1.5}, "normalize.fix_inputs.sr: 1.5 does not fit the input, int64[]"),
        ({"x": (1.0, 2.0)}, "does not fit the input, float[1, 16]"),
    ],
)
def test_input_that_cannot_be_fixed_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fix_inputs(sample_rates(), values)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_functions_become_nodes() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "own": 1]>
        calls (float[1,16] x) => (float[1,16] y) { h = own.twice(x)  y = own.twice(h) }
        <domain: "own", opset_import: ["": 18]> twice (a) => (b) { b = Add(a, a) }
    """)
    assert same_outputs(proto, inline_functions) == "inlined 1 function: twice"
    assert [node.op_type for node in proto.graph.node] == ["Add", "Add"]
    assert not proto.functions
