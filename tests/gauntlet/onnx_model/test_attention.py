"""Attention is found where a softmax lies between two products of computed tensors, and nowhere else."""

import onnx
import onnx_text
import pytest
import transformer_models

from gauntlet.onnx_model.recognition import has_attention

ATTENTION = {
    "scaled and masked": """
        s = MatMul(q, k) d = Mul(s, half) m = Add(d, mask) p = Softmax<axis = -1>(m) o = Identity(p) y = MatMul(o, v)
    """,
    "bare": "s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, v)",
    "inside a branch": """
        y = If(yes) <
            then_branch = then () => (float[n,4,4] a) { s = MatMul(q, k) p = Softmax(s) a = MatMul(p, v) },
            else_branch = else () => (float[n,4,4] b) { b = Identity(v) }
        >
    """,
}
NO_ATTENTION = {
    "probabilities at the end": "s = MatMul(q, w) y = Softmax<axis = -1>(s)",
    "a softmax of weights' product": "s = MatMul(q, w) p = Softmax<axis = -1>(s) y = MatMul(p, v)",
    "shares that meet stored values": "s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, w)",
    "a nonlinearity between": "s = MatMul(q, k) r = Relu(s) p = Softmax<axis = -1>(r) y = MatMul(p, v)",
}


def graph(nodes: str) -> onnx.GraphProto:
    text = f"""
        m (float[n,4,4] q, float[n,4,4] k, float[n,4,4] v, float[n,4,4] mask, bool yes) => (float[n,4,4] y)
        <float[4,4] w, float half = {{0.5}}> {{ {nodes} }}
    """
    return onnx_text.model(text).graph


@pytest.mark.parametrize("nodes", ATTENTION.values(), ids=ATTENTION.keys())
def test_attention_is_found(nodes: str) -> None:
    assert has_attention(graph(nodes))


@pytest.mark.parametrize("nodes", NO_ATTENTION.values(), ids=NO_ATTENTION.keys())
def test_what_is_no_attention_is_not_taken_for_it(nodes: str) -> None:
    assert not has_attention(graph(nodes))


def test_encoder_has_attention_before_and_after_it_is_fused() -> None:
    assert has_attention(transformer_models.encoder().graph)
    fused = "m (float[n,4,4] q, float[n,4,4] k, float[n,4,4] v) => (float[n,4,4] y) "
    fused += "{ y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }"
    assert has_attention(onnx_text.model(fused, domains={"com.microsoft": 1}).graph)
