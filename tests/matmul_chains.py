"""Models whose order in a race is certain."""

from itertools import pairwise

import onnx
import onnx_text

SIZE = 256


def chain(products: int) -> onnx.ModelProto:
    """Return a model of so many matrix products in a row, with a nonlinearity between."""
    names = ["x", *(f"r{i}" for i in range(products - 1)), "y"]
    layers = [f"m{i} = MatMul({a}, w{i}) {b} = Relu(m{i})" for i, (a, b) in enumerate(pairwise(names))]
    weights = ", ".join(f"float[{SIZE},{SIZE}] w{i}" for i in range(products))
    return onnx_text.model(f"""
        chain (float[batch,{SIZE}] x) => (float[batch,{SIZE}] y)
        <{weights}>
        {{ {" ".join(layers)} }}
    """)
