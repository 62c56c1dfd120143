"""Models as people bring them: one of each kind that a pipeline for pictures would stumble over, with samples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text

Samples = dict[str, np.ndarray]
Made = tuple[Path, Samples]

COUNT = 40
RANDOM = np.random.default_rng(7)


def floats(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.standard_normal((COUNT, *shape)).astype(dtype)


def save(folder: Path, model: onnx.ModelProto, **options: object) -> Path:
    path = folder / "brought.onnx"
    onnx.save(model, path, **options)
    return path


def two_inputs(folder: Path) -> Made:
    """Two inputs of different shapes, two outputs."""
    model = onnx_text.model("""
        brought (float[n,16] a, float[n,8] b) => (float[n,4] scores, float[n,8] hidden)
        <float[16,8] w, float[8,4] v>
        {
            h = MatMul(a, w)
            s = Add(h, b)
            hidden = Relu(s)
            scores = MatMul(hidden, v)
        }
    """)
    return save(folder, model), {"a": floats(16), "b": floats(8)}


def int64_input(folder: Path) -> Made:
    """Token numbers into an embedding; a number that never occurs would be out of range."""
    model = onnx_text.model("""
        brought (int64[n,6] tokens) => (float[n,5] scores)
        <float[30,16] table, int64[1] axis = {1}, float[16,5] w>
        {
            e = Gather(table, tokens)
            m = ReduceMean<keepdims = 0>(e, axis)
            scores = MatMul(m, w)
        }
    """)
    return save(folder, model), {"tokens": RANDOM.integers(0, 30, (COUNT, 6))}


def loop(folder: Path) -> Made:
    """A Loop that multiplies three times, and an If inside the graph."""
    # The If looks at the whole batch, so this model takes one sample at a time.
    model = onnx_text.model("""
        brought (float[1,16] x) => (float[1,6] y)
        <int64 trips = {3}, bool yes = {1}, float zero = {0}, float[16,16] w, float[16,6] v>
        {
            after = Loop(trips, yes, x) <
                body = body (int64 i, bool go, float[n,16] state) => (bool go_on, float[n,16] next) {
                    m = MatMul(state, w)
                    next = Tanh(m)
                    go_on = Identity(go)
                }
            >
            sum = ReduceSum<keepdims = 0>(after)
            positive = Greater(sum, zero)
            chosen = If(positive) <
                then_branch = then () => (float[n,16] then_y) { then_y = Relu(after) },
                else_branch = else () => (float[n,16] else_y) { else_y = Neg(after) }
            >
            z = Add(chosen, x)
            size = Abs(sum)
            y = MatMul(z, v)
        }
    """)
    return save(folder, model), {"x": floats(16)}


def external_data(folder: Path) -> Made:
    """Weights in a second file, in a folder of its own below the model."""
    model = onnx_text.model("""
        brought (float[n,16] x) => (float[n,4] y)
        <float[16,64] w, float[64,4] v>
        {
            h = MatMul(x, w)
            y = MatMul(h, v)
        }
    """)
    (folder / "weights").mkdir()
    path = save(folder, model, save_as_external_data=True, location="weights/all.bin", size_threshold=0)
    return path, {"x": floats(16)}


def float16(folder: Path) -> Made:
    """Half precision all through."""
    model = onnx_text.model("""
        brought (float16[n,16] x) => (float16[n,4] y)
        <float16[16,4] w>
        {
            h = MatMul(x, w)
            y = Relu(h)
        }
    """)
    return save(folder, model), {"x": floats(16, dtype=np.float16)}


def fixed_batch(folder: Path) -> Made:
    """A convolution that takes one picture a call."""
    model = onnx_text.model("""
        brought (float[1,3,10,10] x) => (float[1,8] y)
        <float[8,3,3,3] w, int64[2] shape = {1, 8}>
        {
            c = Conv<kernel_shape = [3, 3]>(x, w)
            p = GlobalAveragePool(c)
            y = Reshape(p, shape)
        }
    """)
    return save(folder, model), {"x": floats(3, 10, 10)}


def any_size(folder: Path, pixels: int | None = None) -> Made:
    """A convolution and the mean over the picture; with `pixels`, a sum over so many of them, whatever its size."""
    mean = "y = ReduceMean<keepdims = 0>(c, axes)"
    if pixels:
        mean = "sum = ReduceSum<keepdims = 0>(c, axes) y = Div(sum, pixels)"
    text = f"""
        brought (float[n,3,height,width] x) => (float[n,8] y)
        <int64[2] axes = {{2, 3}}, float pixels = {{{pixels or 1}}}, float[8,3,3,3] w>
        {{
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
            {mean}
        }}
    """
    model = onnx_text.model(text, {"w": np.linspace(-1, 1, 8 * 27)})
    return save(folder, model), {"x": floats(3, 10, 10)}


def text_labels(folder: Path) -> Made:
    """A linear classifier that answers with texts, as scikit-learn's exports do, with its ZipMap."""
    text = f"""
        brought (float[n,16] x) => (string[n] label, seq(map(string, float)) chances)
        {{
            label, scores = ai.onnx.ml.LinearClassifier<
                coefficients = {RANDOM.standard_normal(3 * 16).tolist()},
                intercepts = [0.0, 0.1, -0.1],
                classlabels_strings = ["cat", "dog", "owl"],
                multi_class = 1,
                post_transform = "SOFTMAX"
            >(x)
            chances = ai.onnx.ml.ZipMap<classlabels_strings = ["cat", "dog", "owl"]>(scores)
        }}
    """
    return save(folder, onnx_text.model(text, domains={"ai.onnx.ml": 3})), {"x": floats(16)}


def state(folder: Path) -> Made:
    """A recurrent step: a sequence, a state whose batch is the second axis, and a scalar. There is no batch axis."""
    model = onnx_text.model("""
        brought (float[time,1,8] x, float[1,1,16] h, float gain) => (float[16] y, float[1,1,16] h_next)
        <float[1,48,8] w, float[1,48,16] r>
        {
            g = Mul(x, gain)
            "", h_next = GRU<hidden_size = 16>(g, w, r, "", "", h)
            y = Squeeze(h_next)
        }
    """)
    return save(folder, model), {"x": floats(5, 1, 8), "h": floats(1, 1, 16), "gain": np.abs(floats())}


def above_two_gigabytes(folder: Path, side: int = 16_400) -> Made:
    """Two products with a node between that does nothing; the weights, in a second file, fit no message."""
    length = 4 * side * side  # twice: 2.15 GB
    with (folder / "weights.bin").open("wb") as file:
        for _ in range(2):
            (np.eye(side, dtype=np.float32) * 2).tofile(file)
    model = onnx_text.model(f"""
        brought (float[n,{side}] x) => (float[n,{side}] y)
        <
            float[{side},{side}] w = ["location": "weights.bin", "offset": "0", "length": "{length}"],
            float[{side},{side}] v = ["location": "weights.bin", "offset": "{length}", "length": "{length}"]
        >
        {{
            h = MatMul(x, w)
            same = Identity(h)
            y = MatMul(same, v)
        }}
    """)
    return save(folder, model), {"x": floats(side)}


MODELS: tuple[Callable[[Path], Made], ...] = (
    two_inputs,
    int64_input,
    loop,
    external_data,
    float16,
    fixed_batch,
    text_labels,
    state,
)
