"""Gemm nodes with factors, and with biases of every shape, compute the same in the form that quantizers take."""

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import helper

from gauntlet.calibration.quantizer_input import make_gemms_plain
from gauntlet.runtime.session import open_session

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def network(attributes: str, bias: str, weights: str = "float[4,5] w") -> onnx.ModelProto:
    inputs = "x, w, c" if bias else "x, w"
    declared = f"{weights}, {bias} c" if bias else weights
    text = f"m (float[3,4] x) => (float[3,5] y) <{declared}> {{ y = Gemm<{attributes}>({inputs}) }}"
    return onnx_text.model(text)


def output(proto: onnx.ModelProto) -> np.ndarray:
    return open_session(proto.SerializeToString()).run(None, {"x": X})[0]


@pytest.mark.parametrize(
    ("attributes", "bias", "vector"),
    [
        ("alpha = 1.0, beta = 0.0", "float", None),
        ("beta = 0.5", "float[5]", True),
        ("alpha = 2.5, beta = -3.0", "float[5]", True),
        ("alpha = 0.5", "", None),
        ("beta = 1.0", "float", True),
        ("beta = 2.0", "float[1]", True),
        ("beta = 1.0", "float[1,5]", True),
        ("beta = 2.0", "float[3,5]", False),
        ("beta = 2.0", "float[3,1]", False),
    ],
)
def test_factors_are_folded_and_the_bias_is_a_vector(attributes: str, bias: str, vector: bool | None) -> None:
    proto = network(attributes, bias)
    before = output(proto)
    make_gemms_plain(proto.graph)
    onnx.checker.check_model(proto)
    np.testing.assert_allclose(output(proto), before, rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in proto.graph.node] == (["Gemm", "Add"] if vector is False else ["Gemm"])
    node = proto.graph.node[0]
    assert all(attribute.f == 1 for attribute in node.attribute if attribute.name in ("alpha", "beta"))
    if not vector:
        assert len(node.input) == 2
    else:
        stored = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
        assert stored[node.input[2]] == [5]


def test_transposed_weights_decide_the_length_of_the_bias() -> None:
    proto = network("transB = 1", "float", weights="float[5,4] w")
    before = output(proto)
    make_gemms_plain(proto.graph)
    assert [list(t.dims) for t in proto.graph.initializer if t.name == proto.graph.node[0].input[2]] == [[5]]
    np.testing.assert_allclose(output(proto), before, rtol=1e-6)


def test_plain_node_and_computed_bias_stay() -> None:
    proto = onnx_text.model(
        """
        m (float[3,4] x) => (float[3,5] y) <float[4,5] w, float[5] c>
        { a = Gemm(x, w, c) d = Relu(a) y = Gemm<beta = 2.0>(x, w, d) }
        """
    )
    before = proto.SerializeToString()
    make_gemms_plain(proto.graph)
    assert proto.SerializeToString() == before


def test_a_bias_that_others_read_stays_as_it_is() -> None:
    proto = onnx_text.model(
        """
        m (float[3,4] x) => (float[3,5] y) <float[4,5] w, float[5] c>
        { a = Gemm<beta = 2.0>(x, w, c) y = Add(a, c) }
        """
    )
    before = output(proto)
    make_gemms_plain(proto.graph)
    np.testing.assert_allclose(output(proto), before, rtol=1e-6)
    assert proto.graph.node[1].input[1] == "c"
    assert helper.get_attribute_value(proto.graph.node[0].attribute[0]) == 1
