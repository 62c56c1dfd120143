"""An encoder of a transformer in the form that PyTorch exports, small enough to run in milliseconds."""

import numpy as np
import onnx
import onnx_text

TOKENS, WIDTH, HIDDEN, CLASSES = 5, 32, 64, 4

BLOCK = """
    n1_{i} = LayerNormalization<axis = -1, epsilon = 0.000001>(x{i}, gain1_{i}, shift1_{i})
    [query{i}] q1_{i} = MatMul(n1_{i}, wq{i})
    q2_{i} = Add(bq{i}, q1_{i})
    q3_{i} = Reshape(q2_{i}, heads)
    q{i} = Transpose<perm = [0, 2, 1, 3]>(q3_{i})
    [key{i}] k1_{i} = MatMul(n1_{i}, wk{i})
    k2_{i} = Add(bk{i}, k1_{i})
    k3_{i} = Reshape(k2_{i}, heads)
    k{i} = Transpose<perm = [0, 2, 3, 1]>(k3_{i})
    [value{i}] v1_{i} = MatMul(n1_{i}, wv{i})
    v2_{i} = Add(bv{i}, v1_{i})
    v3_{i} = Reshape(v2_{i}, heads)
    v{i} = Transpose<perm = [0, 2, 1, 3]>(v3_{i})
    [scores{i}] s{i} = MatMul(q{i}, k{i})
    d{i} = Div(s{i}, scale)
    p{i} = Softmax<axis = -1>(d{i})
    [mix{i}] m{i} = MatMul(p{i}, v{i})
    t{i} = Transpose<perm = [0, 2, 1, 3]>(m{i})
    r{i} = Reshape(t{i}, flat)
    [output{i}] o1_{i} = MatMul(r{i}, wo{i})
    o{i} = Add(bo{i}, o1_{i})
    a{i} = Add(o{i}, x{i})
    n2_{i} = LayerNormalization<axis = -1, epsilon = 0.000001>(a{i}, gain2_{i}, shift2_{i})
    [up{i}] f1_{i} = MatMul(n2_{i}, w1_{i})
    f{i} = Add(b1_{i}, f1_{i})
    g1_{i} = Div(f{i}, root)
    g2_{i} = Erf(g1_{i})
    g3_{i} = Add(g2_{i}, one)
    g4_{i} = Mul(f{i}, g3_{i})
    g{i} = Mul(g4_{i}, half)
    [down{i}] h1_{i} = MatMul(g{i}, w2_{i})
    h{i} = Add(b2_{i}, h1_{i})
    x{j} = Add(a{i}, h{i})
"""
SHAPES = {
    **{f"w{part}{{i}}": (WIDTH, WIDTH) for part in "qkvo"},
    **{f"b{part}{{i}}": (WIDTH,) for part in "qkvo"},
    **{f"{kind}{place}_{{i}}": (WIDTH,) for kind in ("gain", "shift") for place in "12"},
    "w1_{i}": (WIDTH, HIDDEN),
    "b1_{i}": (HIDDEN,),
    "w2_{i}": (HIDDEN, WIDTH),
    "b2_{i}": (WIDTH,),
}


def encoder(blocks: int = 2) -> onnx.ModelProto:
    """Return an encoder with two heads: tokens (n, 5, 32) to scores (n, 4)."""
    shapes = {name.format(i=i): shape for i in range(blocks) for name, shape in SHAPES.items()}
    shapes |= {"place": (1, TOKENS, WIDTH), "gain": (WIDTH,), "shift": (WIDTH,), "w": (CLASSES, WIDTH), "b": (CLASSES,)}
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    weights |= {name: np.ones(WIDTH) for name in weights if name.startswith("gain")}
    declared = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    return onnx_text.model(
        f"""
        encoder (float[n,{TOKENS},{WIDTH}] tokens) => (float[n,{CLASSES}] logits)
        <{declared}, int64[4] heads = {{0, 0, 2, 16}}, int64[3] flat = {{0, 0, 32}}, int64[1] axis = {{1}},
         float scale = {{4}}, float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}>
        {{
            x0 = Add(tokens, place)
            {"".join(BLOCK.format(i=i, j=i + 1) for i in range(blocks))}
            last = LayerNormalization<axis = -1, epsilon = 0.000001>(x{blocks}, gain, shift)
            mean = ReduceMean<keepdims = 0>(last, axis)
            [head] logits = Gemm<transB = 1>(mean, w, b)
        }}
        """,
        {name: value.astype(np.float32) for name, value in weights.items()},
    )


def tokens(count: int = 24, seed: int = 1) -> np.ndarray:
    """Return inputs, shape (count, 5, 32)."""
    return np.random.default_rng(seed).standard_normal((count, TOKENS, WIDTH)).astype(np.float32)
