"""Two graphs are the same when they compute the same in the same way, whatever things are called."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.runtime.graph_fingerprint import graph_fingerprint, optimized_graph_fingerprint


def graph(weight: float = 2) -> onnx.ModelProto:
    """Return y = relu(x * w) - (x * w), with an If of which only one branch is ever taken."""
    text = """
        graph (float[4] x) => (float[4] y)
        <float[4] w, bool c = {1}> {
            [mul] m = Mul(x, w) [relu] r = Relu(m)
            [if] i = If(c) <
                then_branch = then () => (float[4] t) { t = Neg(m) },
                else_branch = else () => (float[4] e) { e = Abs(m) }
            >
            [add] y = Add(r, i)
        }
    """
    return onnx_text.model(text, {"w": np.full(4, weight)})


def test_fingerprint_is_the_same_when_only_names_or_the_order_differ() -> None:
    renamed = onnx_text.model("""
        another (float[4] x) => (float[4] y)
        <float[4] factor = {2, 2, 2, 2}, bool always = {1}>
        {
            [first] product = Mul(x, factor)
            [third] chosen = If(always) <
                then_branch = yes () => (float[4] less) { less = Neg(product) },
                else_branch = no () => (float[4] size) { size = Abs(product) }
            >
            [second] positive = Relu(product)
            [last] y = Add(positive, chosen)
        }
    """)
    assert graph_fingerprint(graph()) == graph_fingerprint(renamed)


def test_fingerprint_tells_weights_apart_only_when_they_count() -> None:
    assert graph_fingerprint(graph(2.0)) != graph_fingerprint(graph(3.0))
    assert graph_fingerprint(graph(2.0), weights=False) == graph_fingerprint(graph(3.0), weights=False)


def test_fingerprint_is_the_same_when_the_weights_lie_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(graph(), path, save_as_external_data=True, location="model.bin", size_threshold=0)
    beside = onnx.load(path, load_external_data=False)
    assert not any(tensor.raw_data for tensor in beside.graph.initializer)
    assert graph_fingerprint(beside, tmp_path) == graph_fingerprint(graph())
    (tmp_path / "model.bin").write_bytes(bytes((tmp_path / "model.bin").stat().st_size))
    assert graph_fingerprint(beside, tmp_path) != graph_fingerprint(graph())


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weight_that_is_an_input_too_is_no_constant(tmp_path: Path, ir_version: int) -> None:
    product = "product (float[n,4] x{}) => (float[n,4] y) <float[4,4] w> {{ y = MatMul(x, w) }}"
    constant = onnx_text.model(product.format(""), ir_version=ir_version)
    replaceable = onnx_text.model(product.format(", float[4,4] w"), ir_version=ir_version)
    assert graph_fingerprint(constant) != graph_fingerprint(replaceable)
    onnx.save(constant, tmp_path / "constant.onnx")
    onnx.save(replaceable, tmp_path / "replaceable.onnx")
    assert optimized_graph_fingerprint(tmp_path / "constant.onnx") != optimized_graph_fingerprint(
        tmp_path / "replaceable.onnx"
    )


def test_fingerprint_without_weights_tells_shapes_apart() -> None:
    text = "m (float[2,6] x) => (float[a,b] y) <int64[2] shape = {{{}}}> {{ y = Reshape(x, shape) }}"
    wide, tall = (onnx_text.model(text.format(shape)) for shape in ("1, -1", "-1, 1"))
    assert graph_fingerprint(wide, weights=False) != graph_fingerprint(tall, weights=False)


def other_body(model: onnx.ModelProto) -> None:
    branch = next(n for n in model.graph.node if n.op_type == "If").attribute[0].g
    branch.node[0].op_type = "Exp"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.graph.node[-1], "op_type", "Sub"),
        other_body,
        lambda model: setattr(model.graph.output[0], "name", "m"),
        lambda model: model.graph.node[1].attribute.add(name="extra", type=onnx.AttributeProto.INT, i=1),
        lambda model: model.graph.node.add(op_type="Relu", input=["m"], output=["unused"]),
    ],
    ids=["operator", "body", "output", "attribute", "node twice"],
)
def test_fingerprint_differs_when_the_graph_does(change: Callable[[onnx.ModelProto], None]) -> None:
    changed = graph()
    change(changed)
    assert graph_fingerprint(changed) != graph_fingerprint(graph())


def test_runtime_makes_the_same_graph_of_what_it_would_fold_itself(tmp_path: Path) -> None:
    plain, padded = graph(), graph()
    padded.graph.node[0].output[0] = "before"
    onnx_text.extend(padded, "{ m = Identity(before) }", 1)
    assert graph_fingerprint(plain) != graph_fingerprint(padded)
    onnx.save(plain, tmp_path / "plain.onnx")
    onnx.save(padded, tmp_path / "padded.onnx")
    assert optimized_graph_fingerprint(tmp_path / "plain.onnx") == optimized_graph_fingerprint(tmp_path / "padded.onnx")
