"""Constants behind a product are folded into its weights, and nothing else is."""

import re

import numpy as np
import onnx
import onnx_text
import onnxruntime as ort
import pytest

from wings.graph_passes.fold_affine import FoldAffine

CONSTANTS = {
    "w": "float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}",
    "u": "float[4,3] u = {1,2,3,4,5,6,7,8,9,10,11,12}",
    "k": "float[4,2,3] k = {" + ",".join(str(i % 5 - 2) for i in range(24)) + "}",
    "k2": "float[4,2,1,3] k2 = {" + ",".join(str(i % 5 - 2) for i in range(24)) + "}",
    "a": "float[4] a = {1.5, -2, 0.5, 3}",
    "b": "float[4] b = {1, -1, 2, 0.5}",
    "column": "float[4,1] column = {1, 2, 3, 4}",
    "o": "float o = {0.25}",
    "i": "int64[1] i = {2}",
}


def dense(body: str) -> str:
    return f"m (float[n,3] x) => (float[n,4] y) <{used(body)}> {{ {body} }}"


def convolution(body: str) -> str:
    return f"m (float[n,2,6] x) => (float[n,4,4] y) <{used(body)}> {{ {body} }}"


def used(body: str) -> str:
    words = re.findall(r"\w+", body)
    return ", ".join(constant for name, constant in CONSTANTS.items() if name in words)


def folded(text: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the model before and after the pass, which has to be valid and to compute the same."""
    before, after = onnx_text.model(text), FoldAffine().transform(onnx_text.model(text))
    onnx.checker.check_model(after, full_check=True)
    shape = [
        5 if isinstance(d, str) else d for d in ort.InferenceSession(before.SerializeToString()).get_inputs()[0].shape
    ]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    outputs = [ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x}) for proto in (before, after)]
    for expected, actual in zip(*outputs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    return before, after


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (dense("p = MatMul(x, w) q = Mul(p, a) r = Add(q, b) y = Relu(r)"), ["MatMul", "Add", "Relu"]),
        (dense("p = MatMul(x, w) q = Add(p, b) r = Sub(a, q) s = Div(r, o) y = Mul(o, s)"), ["MatMul", "Add"]),
        (dense("p = MatMul(x, w) y = Mul(p, a)"), ["MatMul"]),
        (dense("p = Gemm<alpha=0.5, beta=2.0>(x, w, b) q = Mul(p, a) y = Sub(q, b)"), ["Gemm"]),
        (dense("p = Gemm(x, w) y = Add(p, a)"), ["Gemm"]),
        (dense("p = Gemm<transB=1>(x, u) y = Mul(p, a)"), ["Gemm"]),
        (convolution("p = Conv(x, k) q = Mul(p, column) r = Relu(q) y = Mul(r, column)"), ["Conv", "Relu", "Mul"]),
        (convolution("p = Conv(x, k, b) q = Sub(column, p) y = Mul(q, o)"), ["Conv"]),
        (
            convolution("p = Conv(x, k) q = Transpose<perm=[0,2,1]>(p) r = Mul(q, a) y = Add(r, b)"),
            ["Conv", "Transpose"],
        ),
        (
            convolution("v = Unsqueeze(x, i) p = Conv(v, k2) q = Squeeze(p, i) r = Mul(q, column) y = Relu(r)"),
            ["Unsqueeze", "Conv", "Squeeze", "Relu"],
        ),
    ],
)
def test_chain_is_folded(text: str, expected: list[str]) -> None:
    _, after = folded(text)
    assert operators(after) == expected
    read = {name for node in after.graph.node for name in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= read


@pytest.mark.parametrize(
    "text",
    [
        dense("p = MatMul(x, w) y = Add(p, b)"),
        dense("p = MatMul(x, w) q = Mul(p, a) y = Add(q, p)"),
        dense("p = MatMul(x, w) q = Mul(p, p) y = Add(q, b)"),
        dense("p = MatMul(x, w) q = Div(o, p) y = Relu(q)"),
        dense("p = MatMul(x, w) q = Relu(p) y = Mul(q, a)"),
        convolution("p = Conv(x, k) y = Mul(p, b)"),
    ],
    ids=["bias", "read twice", "square", "reciprocal", "after Relu", "another axis"],
)
def test_other_graph_is_left_alone(text: str) -> None:
    before, after = folded(text)
    assert after == before


def test_weights_of_two_products_are_folded_for_one() -> None:
    _, after = folded(dense("p = MatMul(x, w) q = Mul(p, a) r = MatMul(x, w) y = Add(q, r)"))
    assert operators(after) == ["MatMul", "MatMul", "Add"]
    assert len(after.graph.initializer) == 2


def test_value_that_the_model_returns_stays() -> None:
    text = dense("p = MatMul(x, w) q = Mul(p, a) y = Mul(q, a)").replace(
        "=> (float[n,4] y)", "=> (float[n,4] y, float[n,4] q)"
    )
    _, after = folded(text)
    assert operators(after) == ["MatMul", "Mul"]
