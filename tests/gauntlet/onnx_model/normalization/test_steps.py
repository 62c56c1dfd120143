"""Each step leaves a model in its form alone: constants, names, unused parts, branches, functions, order of nodes."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
from normalized_models import outputs, plain, same_outputs, sample_rates
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.onnx_model.graph import all_nodes
from gauntlet.onnx_model.normalization.branches import fold_branches
from gauntlet.onnx_model.normalization.constants import drop_default_inputs, lift_constants
from gauntlet.onnx_model.normalization.fixed_inputs import fix_inputs
from gauntlet.onnx_model.normalization.opset import raise_opset
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.normalization.shapes import infer_shapes_anew
from gauntlet.onnx_model.normalization.tidy import inline_functions, make_names_unique, remove_unused
from gauntlet.runtime.session import open_session


@pytest.mark.parametrize(
    "change",
    [
        sort_nodes,
        inline_functions,
        lift_constants,
        drop_default_inputs,
        fold_branches,
        remove_unused,
        make_names_unique,
        infer_shapes_anew,
        lambda proto: fix_inputs(proto, {}),
        lambda proto: raise_opset(proto, 17, 10),
    ],
)
def test_model_in_its_form_is_not_touched(change: Callable[[onnx.ModelProto], str]) -> None:
    proto = plain()
    assert change(proto) == ""
    assert proto == plain()


def test_constants_are_lifted_in_inner_graphs_too() -> None:
    proto = sample_rates()
    onnx_text.extend(proto, "{ three = Constant<value_floats = [3.0]>() }", 0)
    same_outputs(proto, lift_constants, sr=np.array(8000))
    assert not [node for node in all_nodes(proto.graph) if node.op_type == "Constant"]
    assert [t.name for t in proto.graph.initializer][-1] == "three"


def test_constant_that_is_an_output_stays() -> None:
    proto = plain()
    onnx_text.extend(proto, "{ k = Constant<value_floats = [3.0]>() }")
    proto.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, [1]))
    assert lift_constants(proto) == ""


def test_weights_leave_the_inputs_and_the_old_file_format() -> None:
    proto = onnx_text.model(
        "old (float[n,16] x) => (float[n,4] y) <float[16,4] w> { y = MatMul(x, w) }", opset=9, ir_version=3
    )
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [16, 4]))
    assert "1 initializers" in same_outputs(proto, drop_default_inputs)
    assert ([i.name for i in proto.graph.input], proto.ir_version) == (["x"], 4)


def test_default_that_a_signature_declares_stays_an_input() -> None:
    proto = plain()
    proto.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    assert drop_default_inputs(proto, {"x", "b"}) == ""
    assert [i.name for i in proto.graph.input] == ["x", "b"]


def test_unused_parts_are_counted_and_gone() -> None:
    proto = plain()
    onnx_text.extend(proto, "<float[3] spare = {1, 2, 3}> { [dead] d = Relu(p) }")
    assert same_outputs(proto, remove_unused) == "removed 1 unused nodes, 1 unused initializers"
    assert [node.name for node in proto.graph.node] == ["product", "sum"]


def test_names_become_unique_and_inputs_keep_theirs() -> None:
    proto = plain()
    onnx_text.extend(proto, "{ z = Relu(y)  [sum] v = Neg(z) }")
    proto.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n", 4]))
    with pytest.raises(StageError, match="two nodes with same node name"):
        outputs(proto)
    assert make_names_unique(proto) == "renamed 1 unnamed nodes, 1 nodes of the same name"
    assert outputs(proto)
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names) == 4
    assert all(names)
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["x", "y", "v"]


def test_graph_without_a_name_which_the_checker_refuses_gets_one() -> None:
    proto = plain()
    make_names_unique(proto)
    proto.graph.name = ""
    with pytest.raises(onnx.checker.ValidationError, match="'name' of 'graph'"):
        onnx.checker.check_model(proto)
    assert make_names_unique(proto) == "named the graph"
    onnx.checker.check_model(proto)


def test_sparse_weights_are_refused_rather_than_lost() -> None:
    proto = plain()
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64)), [4])
    )
    with pytest.raises(StageError, match="sparse"):
        remove_unused(proto)


@pytest.mark.parametrize("by_axis", [False, True])
def test_sparse_weights_become_dense_ones_of_the_same_values(by_axis: bool) -> None:
    weights = np.array([[0, 2, 0], [3, 0, 0]], np.float32)
    places = np.argwhere(weights) if by_axis else np.flatnonzero(weights)
    proto = onnx_text.model("m (float[n, 2] x) => (float[n, 3] y) { y = MatMul(x, w) }")
    values = numpy_helper.from_array(weights[weights != 0], "w")
    indices = numpy_helper.from_array(places.astype(np.int64), "places")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, weights.shape))
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    assert lift_constants(proto) == "turned 1 sparse initializers into dense ones"
    assert not proto.graph.sparse_initializer
    x = np.array([[1, 10], [2, 1]], np.float32)
    np.testing.assert_array_equal(open_session(before.SerializeToString()).run(None, {"x": x})[0], x @ weights)
    np.testing.assert_array_equal(outputs(proto, x=x)[0], x @ weights)


def test_model_that_the_library_cannot_read_is_refused_in_one_line() -> None:
    proto = plain()
    proto.graph.output[0].type.CopyFrom(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    )
    with pytest.raises(StageError, match="onnx_ir cannot read the model: ") as refused:
        make_names_unique(proto)
    assert "\n" not in str(refused.value)


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
        ({"sr": "fast"}, "fast does not fit the input, int64[]"),
        ({"sr": 2**70}, "does not fit the input, int64[]"),
        ({"x": (1e39,) * 16}, "does not fit the input, float[1, 16]"),  # infinite in float32
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


def test_call_of_a_function_keeps_the_default_of_its_attribute() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18, "own": 1]>
        calls (float[1,16] x) => (float[1,16] y) { y = own.outer(x) }
        <domain: "own", opset_import: ["": 18, "own": 1]>
        outer (a) => (c) { b = own.leak(a) c = own.leak<slope = 0.5>(b) }
        <domain: "own", opset_import: ["": 18]>
        leak <slope: float = 0.3> (a) => (b) { b = LeakyRelu<alpha: float = @slope>(a) }
    """)
    assert same_outputs(proto, inline_functions) == "inlined 2 functions: leak, outer"
    assert [round(node.attribute[0].f, 1) for node in proto.graph.node] == [0.3, 0.5]
