"""Small models for the tests of normalization, and whether a change keeps their outputs."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_text

from gauntlet.onnx_model.graph import required_inputs
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
