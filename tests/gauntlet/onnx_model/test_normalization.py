"""Each transformation does its part, changes nothing where there is nothing to do, and keeps the outputs."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.onnx_model.graph import all_nodes, opset_versions, required_inputs, tensor_shape
from gauntlet.onnx_model.normalization.batch import fixed_batch, free_batch
from gauntlet.onnx_model.normalization.branches import fold_branches
from gauntlet.onnx_model.normalization.constants import drop_default_inputs, lift_constants
from gauntlet.onnx_model.normalization.fixed_inputs import fix_inputs
from gauntlet.onnx_model.normalization.functions import inline_functions
from gauntlet.onnx_model.normalization.opset import raise_opset
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.normalization.shapes import conflicting_shapes, infer_shapes_anew
from gauntlet.onnx_model.normalization.tidy import make_names_unique, remove_unused
from gauntlet.runtime.session import open_session

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)


def plain(opset: int = 18) -> onnx.ModelProto:
    text = """
        plain (float[n,16] x) => (float[n,4] y) <float[16,4] w, float[4] b>
        { [product] p = MatMul(x, w)  [sum] y = Add(p, b) }
    """
    return onnx_text.model(text, opset=opset)


def sample_rates() -> onnx.ModelProto:
    """Two branches, each with its own weights as a Constant node, chosen by an input that callers keep constant."""
    return onnx_text.model("""
        rates (float[1,16] x, int64 sr) => (float[1,4] y)
        <int64 high = {16000}, float[16,4] w, float[4] b>
        {
            is_high = Equal(sr, high)
            y = If(is_high) <
                then_branch = a () => (float[1,4] t) { p = MatMul(x, w) t = Add(p, b) },
                else_branch = c () => (float[1,4] e) {
                    two = Constant<value_float = 2.0>()
                    q = MatMul(x, w)
                    e = Mul(q, two)
                }
            >
        }
    """)


def outputs(proto: onnx.ModelProto, **feed: np.ndarray) -> list[np.ndarray]:
    onnx.checker.check_model(proto, full_check=True)
    return open_session(proto.SerializeToString()).run(None, {"x": X, **feed})


def same_outputs(proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], str], **feed: np.ndarray) -> str:
    before = outputs(proto, **feed)
    done = change(proto)
    kept = {value.name for value in required_inputs(proto.graph)}
    after = outputs(proto, **{name: array for name, array in feed.items() if name in kept})
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    return done


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


def test_fixed_input_leaves_the_signature_and_its_branch_folds() -> None:
    proto = sample_rates()
    done = same_outputs(proto, lambda p: fix_inputs(p, {"sr": 16000}), sr=np.array(16000))
    assert done == "'sr' is now 16000"
    assert [i.name for i in required_inputs(proto.graph)] == ["x"]
    assert same_outputs(proto, fold_branches) == "folded 1 of 1 If nodes, whose condition is constant"
    assert [node.op_type for node in proto.graph.node] == ["MatMul", "Add"]


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


def test_opset_is_raised_in_branches_and_what_the_converter_adds_is_lifted() -> None:
    proto = onnx_text.model(
        """
        old (float[1,16] x, bool c) => (float[1,1,8] y) <float[16,8] w>
        {
            a = MatMul(x, w)
            s = If(c) <
                then_branch = t () => (float[1,8] q) { q = Softmax<axis = 1>(a) },
                else_branch = e () => (float[1,8] r) { r = Neg(a) }
            >
            y = Unsqueeze<axes = [0]>(s)
        }
        """,
        opset=11,
        ir_version=6,
    )
    assert (
        same_outputs(proto, lambda p: raise_opset(p, 17, 10), c=np.array(True)) == "opset 11 to 17, IR version 6 to 8"
    )
    assert opset_versions(proto) == {"ai.onnx": 17}
    assert not [node for node in all_nodes(proto.graph) if node.op_type == "Constant"]


@pytest.mark.parametrize(
    ("text", "opset", "kinds"),
    [
        ('<float[4] s = {1, 1, 1.5, 3}> { y = Upsample<mode = "linear">(x, s) }', 9, ["Resize"]),
        ('<float[4] s = {1, 1, 1.5, 3}> { y = Upsample<mode = "nearest">(x, s) }', 9, ["Resize"]),
        ('<float[4] s = {1, 1, 0.5, 3}> { y = Resize<mode = "linear">(x, s) }', 10, ["Resize"]),
        ('<float[4] s = {1, 1, 0.5, 3}> { y = Resize<mode = "nearest">(x, s) }', 10, ["Resize"]),
        ("{ y = Softmax<axis = 3>(x) }", 9, ["Softmax"]),
        ("{ y = LogSoftmax<axis = -1>(x) }", 11, ["LogSoftmax"]),
        ("{ y = Hardmax<axis = 3>(x) }", 9, ["Hardmax"]),
        ("{ y = Softmax<axis = 1>(x) }", 9, ["Shape", "Flatten", "Softmax", "Reshape"]),
    ],
)
def test_operator_that_the_converter_gets_wrong_keeps_its_meaning(text: str, opset: int, kinds: list[str]) -> None:
    proto = onnx_text.model(f"old (float[1,2,4,4] x) => (float[a,b,c,d] y) {text}", opset=opset, ir_version=4)
    x = np.random.default_rng(4).standard_normal((1, 2, 4, 4)).astype(np.float32)
    assert same_outputs(proto, lambda p: raise_opset(p, 17, 10), x=x) == f"opset {opset} to 17, IR version 4 to 8"
    assert [node.op_type for node in proto.graph.node] == kinds


def test_opset_stops_at_the_last_version_that_the_converter_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnx.version_converter.convert_version

    def convert(proto: onnx.ModelProto, target: int) -> onnx.ModelProto:
        if target > 14:
            raise RuntimeError("no adapter for Reshape")
        return real(proto, target)

    monkeypatch.setattr(onnx.version_converter, "convert_version", convert)
    proto = plain(9)
    assert raise_opset(proto, 17, 10) == "opset 9 to 14; not further: no adapter for Reshape"
    proto = plain(13)
    with pytest.raises(StageError, match="opset 13 cannot be converted to 17: no adapter for Reshape"):
        raise_opset(proto, 17, 10, least=15)


def test_model_without_standard_operators_has_no_opset_to_raise() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx.ml": 3]> m (float[n,16] x) => (float[n,16] y) '
        "{ y = ai.onnx.ml.Scaler<offset = [0.0], scale = [1.0]>(x) }"
    )
    assert raise_opset(proto, 17, 10) == ""


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


def test_wrong_stored_shapes_are_inferred_again() -> None:
    proto = plain()
    proto.graph.value_info.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 128]))
    with pytest.raises(Exception, match="128"):
        onnx.checker.check_model(proto, full_check=True)
    assert conflicting_shapes(proto) == {"p": (("n", 128), ("n", 4))}
    assert "1 stored ones were wrong: 'p' was stored as [n, 128] and is [n, 4]" in infer_shapes_anew(proto)
    onnx.checker.check_model(proto, full_check=True)


def test_wrong_shape_of_an_output_is_corrected() -> None:
    proto = plain()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512]))
    assert infer_shapes_anew(proto)
    assert tensor_shape(proto.graph.output[0]) == ("n", 4)


def test_shapes_that_cannot_be_inferred_are_kept_as_stored() -> None:
    text = "own (float[1,16] x) => (float[1,16] y) { h = com.microsoft.QuickGelu(x)  y = Relu(h) }"
    proto = onnx_text.model(text, domains={"com.microsoft": 1})
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 16]))
    assert infer_shapes_anew(proto, always=True)
    assert {v.name: tensor_shape(v) for v in proto.graph.value_info}["h"] == (1, 16)


def test_fixed_batch_is_found_and_made_dynamic() -> None:
    proto = onnx_text.model("""
        frozen (float[1,16] x) => (float[1,4,4] y) <int64[3] shape = {1, 4, 4}>
        { r = Relu(x)  y = Reshape(r, shape) }
    """)
    assert fixed_batch(proto.graph) == (1, "")
    assert "from 1 Reshape" in free_batch(proto, required_inputs(proto.graph), 1)
    three = np.repeat(X, 3, axis=0)
    assert outputs(proto, x=three)[0].shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (plain(), "the batch is dynamic"),
        (sample_rates(), "no first axis of one size"),
        (
            onnx_text.model("two (float[1,16] x) => (float[16,1] y) { y = Transpose(x) }"),
            "no first axis of one size",
        ),
    ],
)
def test_model_without_a_fixed_batch_says_why(model: onnx.ModelProto, reason: str) -> None:
    size, why = fixed_batch(model.graph)
    assert size is None
    assert reason in why


def test_branch_over_the_whole_batch_keeps_it_fixed() -> None:
    proto = sample_rates()
    fix_inputs(proto, {"sr": 1})
    assert fixed_batch(proto.graph) == (None, "control flow decides for all samples of a call at once")


def test_sparse_weights_are_refused_rather_than_lost() -> None:
    proto = plain()
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64)), [4])
    )
    with pytest.raises(StageError, match="sparse"):
        remove_unused(proto)


def test_model_that_the_library_cannot_read_is_refused_in_one_line() -> None:
    proto = plain()
    proto.graph.output[0].type.CopyFrom(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    )
    with pytest.raises(StageError, match="onnx_ir cannot read the model: ") as refused:
        make_names_unique(proto)
    assert "\n" not in str(refused.value)
