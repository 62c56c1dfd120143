"""What the last layer with weights takes is found, averaged over places and projected, in floats and in integers."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
import onnx_text
import pytest

from gauntlet.core.arrays import Array
from gauntlet.request_log.log_format import EMBEDDING
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subgraph import intermediate_values
from wings.lifecycle.library.monitoring.embedding_output import VALUES, NoEmbedding, projection, with_embedding
from wings.lifecycle.library.monitoring.embedding_search import find_embedding

CONVOLUTION = """maps (float[n,3,8,8] x) => (float[n,5,8,8] y) <float[64,3,3,3] a, float[5,64,1,1] b> {
  c = Conv<pads=[1,1,1,1]>(x, a)  h = Relu(c)  y = Conv(h, b) }"""
GEMM = """vectors (float[n,8] x) => (float[n,5] y) <float[8,40] a, float[5,40] b, float[5] c> {
  g = MatMul(x, a)  h = Relu(g)  s = Gemm<transB=1>(h, b, c)  y = Softmax(s) }"""
TOKENS = """tokens (float[n,t,8] x) => (float[n,t,5] y) <float[8,48] a, float[48,5] b, float[5] c> {
  h = MatMul(x, a)  k = Transpose<perm=[0,2,1]>(h)  q = MatMul(h, k)  p = Softmax(q)  z = MatMul(p, h)
  m = MatMul(z, b)  y = Add(m, c) }"""


def run(proto: onnx.ModelProto, x: Array) -> Array:
    found = find_embedding(proto, proto.graph.output[0].name)
    session = open_session(with_embedding(proto, found).SerializeToString(), threads=1)
    assert session.get_outputs()[-1].shape[1] == found.values
    return np.asarray(session.run([EMBEDDING], {"x": x})[0])


def values(proto: onnx.ModelProto, name: str, x: Array) -> Array:
    return np.asarray(intermediate_values(proto, [name], {"x": x})[name])


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    ("text", "shape", "layer", "tensor", "axes"),
    [
        (CONVOLUTION, (4, 3, 8, 8), "Conv 'y'", "h", (2, 3)),
        (GEMM, (4, 8), "Gemm 's'", "h", ()),
        (TOKENS, (4, 6, 8), "MatMul 'm'", "z", (1,)),
    ],
    ids=["feature map", "vector", "tokens"],
)
def test_embedding_is_the_mean_over_places_projected(
    text: str, shape: tuple[int, ...], layer: str, tensor: str, axes: tuple[int, ...], opset: int
) -> None:
    proto = onnx_text.model(text, opset=opset)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert find_embedding(proto, "y").layer == layer
    taken = values(proto, tensor, x).mean(axis=axes)
    assert np.allclose(run(proto, x), taken @ projection(taken.shape[1]), atol=1e-4)


def test_few_values_are_kept_as_they_are() -> None:
    proto = onnx_text.model("few (float[n,8] x) => (float[n,5] y) <float[8,5] a> { h = Abs(x) y = MatMul(h, a) }")
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    assert np.array_equal(run(proto, x), np.abs(x))


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (
            """quantized (float[n,8] x) => (float[n,5] y)
            <float s, uint8 z, int8[8,5] w, float v, int8 o, float u, uint8 b> {
              h = Abs(x)  q = QuantizeLinear(h, s, z)  d = DequantizeLinear(q, s, z)  e = DequantizeLinear(w, v, o)
              m = MatMul(d, e)  r = QuantizeLinear(m, u, b)  y = DequantizeLinear(r, u, b) }""",
            {"s": 0.02, "z": 3, "v": 0.01, "o": 0, "u": 0.05, "b": 128},
        ),
        (
            """integers (float[n,8] x) => (float[n,5] y)
            <float s, uint8 z, int8[8,5] w, float v, int8 o, float u, uint8 b> {
              h = Abs(x)  q = QuantizeLinear(h, s, z)  r = QLinearMatMul(q, s, z, w, v, o, u, b)
              y = DequantizeLinear(r, u, b) }""",
            {"s": 0.02, "z": 3, "v": 0.01, "o": 0, "u": 0.05, "b": 128},
        ),
        (
            """dynamic (float[n,8] x) => (float[n,5] y) <int8[8,5] w, float v, int8 o> {
              h = Abs(x)  q, s, z = DynamicQuantizeLinear(h)  m = MatMulInteger(q, w, z, o)  f = Cast<to=1>(m)
              t = Mul(s, v)  y = Mul(f, t) }""",
            {"v": 0.01, "o": 0},
        ),
    ],
    ids=["Q and DQ", "QLinearMatMul", "dynamic"],
)
def test_integers_are_read_as_the_floats_that_they_stand_for(text: str, weights: Mapping[str, npt.ArrayLike]) -> None:
    proto = onnx_text.model(text, {**weights, "w": np.arange(40).reshape(8, 5)})
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    assert np.allclose(run(proto, x), np.abs(x), atol=0.011)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("plain (float[n,8] x) => (float[n,8] y) { y = Relu(x) }", "no convolution or matrix product with weights"),
        (
            "attention (float[n,8,8] x) => (float[n,8,8] y) { y = MatMul(x, x) }",
            "no convolution or matrix product with weights",
        ),
        (
            "fed (float[n,8] x, float[8,5] w) => (float[n,5] y) { y = MatMul(x, w) }",
            "no convolution or matrix product with weights",
        ),
        (
            """taken (float[n,8] x) => (float[n,5] y) <float[8,5] w> {
              gauntlet_embedding = Relu(x) y = MatMul(gauntlet_embedding, w) }""",
            "has a tensor named 'gauntlet_embedding' already",
        ),
    ],
    ids=["no product", "product of two activations", "weights are an input", "name is taken"],
)
def test_model_without_penultimate_outputs_says_so(text: str, why: str) -> None:
    with pytest.raises(NoEmbedding, match=why):
        find_embedding(onnx_text.model(text), "y")


def test_projection_is_the_same_everywhere_and_keeps_distances() -> None:
    signs = projection(512)
    assert signs.shape == (512, VALUES)
    assert np.signbit(signs[0, :8]).tolist() == [True, True, False, True, False, True, True, True]
    points = np.random.default_rng(0).standard_normal((40, 512))
    pairs = np.triu_indices(40, 1)
    before, after = (np.linalg.norm(p[:, None] - p, axis=2)[pairs] for p in (points, points @ signs))
    assert np.abs(after / before - 1).mean() < 0.2
