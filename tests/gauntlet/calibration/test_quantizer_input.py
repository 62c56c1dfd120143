"""Graphs that ONNX Runtime's quantizer fails on are mended first, and compute the same."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import numpy_helper
from onnx_models import with_weights_as_inputs

from gauntlet.calibration.quantizer_input import (
    lift_constants,
    mend_graph,
    name_nodes,
    raise_opset,
    rename_lookalikes,
    sort_nodes,
)
from gauntlet.onnx_model.graph import opset_versions
from gauntlet.runtime.session import open_session

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


def outputs(proto: onnx.ModelProto) -> list[np.ndarray]:
    return open_session(proto.SerializeToString()).run(None, {"x": X})


def convolution(opset: int) -> onnx.ModelProto:
    text = """
        m (float[n,3,8,8] x) => (float[n,4,10,10] y) <float[4,3,3,3] w>
        { c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w) y = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1]>(c) }
    """
    return onnx_text.model(text, opset=opset, ir_version=6)


def test_opset_is_raised_to_what_weights_per_channel_need() -> None:
    proto = convolution(opset=9)
    before = outputs(proto)
    raise_opset(proto)
    assert opset_versions(proto) == {"ai.onnx": 13}
    np.testing.assert_allclose(outputs(proto)[0], before[0], rtol=1e-6)


def test_opset_stays_when_a_body_would_change_its_meaning() -> None:
    """The converter does not enter bodies; Softmax of opset 11 flattens, that of 13 does not."""
    proto = onnx_text.model(
        """
        m (float[n,3,8,8] x) => (float[n,3,8,8] y) <int64 trips = {1}, bool yes = {1}>
        {
            y = Loop(trips, yes, x) <
                body = body (int64 i, bool go, float[a,b,c,d] state) => (bool on, float[a,b,c,d] next) {
                    next = Softmax<axis = 1>(state)
                    on = Identity(go)
                }
            >
        }
        """,
        opset=11,
        ir_version=6,
    )
    before = outputs(proto)
    raise_opset(proto)
    assert opset_versions(proto) == {"ai.onnx": 11}
    np.testing.assert_array_equal(outputs(proto)[0], before[0])


def test_opset_stays_when_an_operator_has_no_adapter() -> None:
    text = "m (float[n,3,8,8] x) => (float[n,3,8,8] y) { h = com.microsoft.Gelu(x) y = Relu(h) }"
    proto = onnx_text.model(text, opset=11, ir_version=6, domains={"com.microsoft": 1})
    raise_opset(proto)
    assert outputs(proto)[0].shape == X.shape


def test_constants_become_initializers() -> None:
    text = "m (float[n,3,8,8] x) => (float[n,3,8,8] y) { two = Constant<value = float {2}>() y = Mul(x, two) }"
    proto = onnx_text.model(text)
    lift_constants(proto.graph)
    assert [node.op_type for node in proto.graph.node] == ["Mul"]
    assert [(t.name, float(numpy_helper.to_array(t))) for t in proto.graph.initializer] == [("two", 2.0)]
    np.testing.assert_array_equal(outputs(proto)[0], 2 * X)


@pytest.mark.parametrize("suffix", ["_scale", "_zero_point", "_quantized", "_QuantizeLinear_Output"])
def test_tensor_named_as_the_quantizer_would_name_one_is_renamed(suffix: str) -> None:
    text = f"m (float[n,3,8,8] x) => (float[n,3,8,8] y) {{ h = Relu(x) h{suffix} = Neg(h) y = Add(h, h{suffix}) }}"
    proto = onnx_text.model(text)
    before = outputs(proto)
    rename_lookalikes(proto.graph)
    names = {name for node in proto.graph.node for name in node.output}
    assert f"h{suffix}" not in names
    assert {"h", "y"} < names
    np.testing.assert_array_equal(outputs(proto)[0], before[0])


def test_names_stay_when_no_tensor_is_like_another() -> None:
    proto = onnx_text.model("m (float[n,3,8,8] x) => (float[n,3,8,8] y) { bn_scale = Relu(x) y = Neg(bn_scale) }")
    before = proto.SerializeToString()
    rename_lookalikes(proto.graph)
    assert proto.SerializeToString() == before


def test_nodes_get_names_of_their_own() -> None:
    proto = onnx_text.model("m (float[n] x) => (float[n] y) { [a] h = Relu(x) [a] g = Neg(h) y = Abs(g) }")
    name_nodes(proto.graph)
    assert [node.name for node in proto.graph.node] == ["a", "Neg_1", "Abs_2"]


def test_nodes_are_sorted_by_what_their_bodies_read() -> None:
    proto = onnx_text.model("""
        m (float[n,3,8,8] x) => (float[n,3,8,8] y) <float zero = {0}>
        {
            sum = ReduceSum<keepdims = 0>(x)
            positive = Greater(sum, zero)
            inside = Relu(x)
            y = If(positive) <
                then_branch = a () => (float[n,3,8,8] t) { t = Neg(inside) },
                else_branch = b () => (float[n,3,8,8] e) { e = Abs(inside) }
            >
        }
    """)
    before = outputs(proto)
    relu = proto.graph.node.pop(2)
    proto.graph.node.append(relu)  # behind the If, whose bodies read it
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(proto)
    sort_nodes(proto.graph)
    onnx.checker.check_model(proto)
    np.testing.assert_array_equal(outputs(proto)[0], before[0])


def test_mended_graph_computes_the_same(tmp_path: Path) -> None:
    proto = convolution(opset=10)
    before = outputs(proto)
    mend_graph(proto)
    np.testing.assert_allclose(outputs(proto)[0], before[0], rtol=1e-6)


def test_weights_are_neither_inputs_nor_values_with_a_shape_afterwards() -> None:
    proto = with_weights_as_inputs(
        onnx_text.model("m (float[n,8] x) => (float[n,4] y) <float[8,4] w> { y = MatMul(x, w) }")
    )
    proto.graph.value_info.add().CopyFrom(proto.graph.input[1])
    assert [value.name for value in proto.graph.input] == ["x", "w"]
    mend_graph(proto)
    assert [value.name for value in proto.graph.input] == ["x"]
    assert not proto.graph.value_info
    onnx.checker.check_model(proto)


def test_weights_that_old_files_must_list_and_do_not_are_no_obstacle() -> None:
    """ONNX Runtime's optimizer folds a batch norm into new weights and keeps the file's IR version 3."""
    proto = convolution(opset=9)
    proto.ir_version = 3
    mend_graph(proto)
    assert opset_versions(proto) == {"ai.onnx": 13}
    assert outputs(proto)[0].shape == (2, 4, 10, 10)
