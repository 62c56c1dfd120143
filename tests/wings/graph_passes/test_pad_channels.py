"""Channels are filled up where only products read them, outputs stay as they are, and nothing else changes."""

import numpy as np
import onnx
import onnx_text
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from wings.graph_passes.pad_channels import PadChannels, padded

CONSTANTS = {
    "k": (30, 3, 3, 3),
    "m": (30, 30, 1, 1),
    "t": (8, 30, 1, 1),
    "u": (30, 8, 1, 1),
    "d": (30, 1, 3, 3),
    "two": (30, 15, 1, 1),
    "last": (4, 30, 3, 3),
    "b": (30,),
    "scale": (30, 1, 1),
    "plane": (6, 6),
    "half": (),
    "w": (1080, 5),
    "v": (5, 30),
}
AXES = {"plane_axes": [2, 3], "mixed_axes": [1, 2]}
SAME = "<pads=[1,1,1,1]>"


def model(body: str) -> onnx.ModelProto:
    """Return a model of images of 3 x 6 x 6 with random constants."""
    proto = onnx_text.model(f"m (float[n,3,6,6] x) => (float[a,b,c,d] y) {{ {body} }}")
    if "MatMul" in body or "Gemm" in body:
        del proto.graph.output[0].type.tensor_type.shape.dim[2:]
    random, words = np.random.default_rng(0), {name for node in proto.graph.node for name in node.input}
    for name in [name for name in CONSTANTS if name in words]:
        array = np.asarray(random.uniform(0.1, 1, CONSTANTS[name]), np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(AXES[name]), name) for name in words & {*AXES})
    return proto


def filled(body: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the constants after the pass, which leaves the outputs as they are."""
    before, after = model(body), PadChannels().transform(model(body))
    onnx.checker.check_model(after, full_check=True)
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32)
    expected, actual = (ort.InferenceSession(p.SerializeToString()).run(None, {"x": x})[0] for p in (before, after))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    return {tensor.name.partition("_")[0]: tuple(tensor.dims) for tensor in after.graph.initializer}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Conv(x, k, b) c = Relu(a) y = Conv(c, last)", {"k": (32, 3, 3, 3), "b": (32,), "last": (4, 32, 3, 3)}),
        (
            f"a = Conv{SAME}(x, k) c = Conv(a, m) e = Add(a, c) f = PRelu(e, scale) y = Conv(f, last)",
            {"k": (32, 3, 3, 3), "m": (32, 32, 1, 1), "scale": (32, 1, 1), "last": (4, 32, 3, 3)},
        ),
        (
            f"a = Conv{SAME}(x, k) c = Conv<group=30, pads=[1,1,1,1]>(a, d, b) e = Mul(c, half) y = Conv(e, last)",
            {"k": (32, 3, 3, 3), "d": (32, 1, 3, 3), "b": (32,), "half": (), "last": (4, 32, 3, 3)},
        ),
        (  # a gate of each channel
            """a = Conv(x, k)  g = GlobalAveragePool(a)  s = Conv(g, t)  r = Relu(s)  q = Conv(r, u)  p = Sigmoid(q)
            e = Mul(a, p)  f = MaxPool<kernel_shape=[2,2]>(e)  y = Conv(f, last)""",
            {"k": (32, 3, 3, 3), "t": (8, 32, 1, 1), "u": (32, 8, 1, 1), "last": (4, 32, 3, 3)},
        ),
        (f"a = Conv{SAME}(x, k) c = Add(a, plane) f = Flatten(c) y = MatMul(f, w)", {"w": (1152, 5), "plane": (6, 6)}),
        ("a = Conv(x, k) c = BatchNormalization(a, b, b, b, b) f = Relu(c) y = Conv(f, last)", {"b": (32,)}),
        ("a = Conv(x, k) g = GlobalAveragePool(a) f = Flatten(g) y = Gemm<transB=1>(f, v)", {"v": (5, 32)}),
        ("a = Conv(x, k) g = ReduceMean<keepdims=0>(a, plane_axes) y = Gemm<transB=1>(g, v)", {"v": (5, 32)}),
    ],
)
def test_channels_are_filled_up_and_the_outputs_stay_as_they_are(
    body: str, expected: dict[str, tuple[int, ...]]
) -> None:
    shapes = filled(body)
    assert shapes["k"][0] == 32
    assert shapes.items() >= expected.items()


@pytest.mark.parametrize(
    "body",
    [
        "y = Conv(x, k)",  # its outputs are the model's
        "a = Conv(x, k) c = Conv(a, last) y = Concat<axis=1>(a, c)",
        "a = Conv(x, k) y = Softmax<axis=1>(a)",
        "a = Conv(x, k) c = Div(a, scale) y = Conv(c, last)",  # zero by zero
        f"a = Conv{SAME}(x, k) c = Conv<group=2>(a, two) y = Conv(c, last)",
        "a = Conv(x, k) c = Relu(a) y = Conv(a, c)",  # weights of the data
        "a = Conv(x, k) f = Flatten<axis=2>(a) y = Relu(f)",
        "a = Conv(x, k) g = ReduceMean<keepdims=0>(a, mixed_axes) y = Relu(g)",
        "a = Conv(x, k) c = Relu(a) e = Transpose<perm=[0,2,3,1]>(c) y = Relu(e)",
    ],
)
def test_channels_that_something_else_reads_stay_as_they_are(body: str) -> None:
    before = model(body)
    assert PadChannels().transform(model(body)) == before


def test_few_channels_and_full_vectors_stay_as_they_are() -> None:
    assert [padded(n) for n in (3, 11, 12, 13, 16, 17, 30, 32, 58)] == [3, 11, 16, 16, 16, 20, 32, 32, 60]
