"""Models whose order in a race is certain, and how a race takes them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import onnx
import onnx_text

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase

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


def stored_for_race(
    out: Workspace, models: Mapping[str, onnx.ModelProto | bytes], inputs: NamedArrays
) -> dict[str, Any]:
    """Store models, and golden outputs that are the first inputs, as a race takes both."""
    kept = {}
    for name, model in models.items():
        path = out.folder / f"{name}.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        kept[name] = out.store_file(path)
    outputs = {"y": next(iter(inputs.values()))}
    Golden({"real": GoldenCase(inputs, outputs)}, outputs).save(out.folder / "golden.npz")
    return {"models": kept, "golden": out.store_file(out.folder / "golden.npz")}
