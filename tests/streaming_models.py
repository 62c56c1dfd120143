"""Streaming models as text: a step takes a frame and the state that the step before returned."""

import numpy as np
import onnx
import onnx_text

SAMPLES = 60


def frames(count: int = SAMPLES) -> dict[str, np.ndarray]:
    """Frames, and states as large as those that the model reaches."""
    rng = np.random.default_rng(5)
    return {name: rng.standard_normal((count, 8)).astype(np.float32) for name in ("x", "h")}


def leaky_sum(bias: float = 0.0, names: tuple[str, str] = ("h", "h_out"), keep: float = 0.98) -> onnx.ModelProto:
    """A state that forgets 2 % a step, and what is read from it; `bias` is added at every step."""
    before, after = names
    text = f"""
        m (float[n,8] x, float[n,8] {before}) => (float[n,3] y, float[n,8] {after})
        <float[8,8] w, float[8,3] v, float keep = {{{keep}}}, float bias = {{{bias}}}>
        {{
            kept = Mul({before}, keep)
            new = MatMul(x, w)
            sum = Add(kept, new)
            {after} = Add(sum, bias)
            read = MatMul({after}, v)
            y = Tanh(read)
        }}
    """
    return onnx_text.model(text, {"w": 0.3 * np.random.default_rng(1).standard_normal((8, 8))})


def late(stuck: bool = False) -> onnx.ModelProto:
    """A count of the steps, from 100 of which on the output is ten times as large; one that is stuck stops at 50."""
    text = f"""
        m (float[n,8] x, float[n,1] h) => (float[n,3] y, float[n,1] h_out)
        <float[8,3] w, float one = {{1.0}}, float most = {{{50.0 if stuck else 1e6}}}, float warm = {{100.0}},
         float tenth = {{0.1}}>
        {{
            next = Add(h, one) h_out = Min(next, most) left = Sub(h_out, warm) gate = Sigmoid(left)
            scale = Add(gate, tenth) read = MatMul(x, w) y = Mul(read, scale)
        }}
    """
    return onnx_text.model(text)


def counter(step: int = 1) -> onnx.ModelProto:
    """A counter of the frames as its state."""
    return onnx_text.model(f"""
        m (float[n,8] x, int64[n] count) => (float[n,3] y, int64[n] count_out)
        <float[8,3] w, int64 step = {{{step}}}>
        {{
            count_out = Add(count, step)
            y = MatMul(x, w)
        }}
    """)


def cached(bias: float = 0.0) -> onnx.ModelProto:
    """A cache that grows by an entry a step, a mask over it, and its mean; `bias` is in new entries."""
    proto = onnx_text.model(f"""
        m (float[n,1,8] x, float[n,past,8] cache, float[n,total] mask) => (float[n,8] y, float[n,all,8] cache_out)
        <float bias = {{{bias}}}, int64[1] last = {{2}}, int64[1] middle = {{1}}>
        {{
            new = Add(x, bias) cache_out = Concat<axis = 1>(cache, new)
            weights = Unsqueeze(mask, last) kept = Mul(cache_out, weights) y = ReduceMean<keepdims = 0>(kept, middle)
        }}
    """)
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + 1"
    return proto
