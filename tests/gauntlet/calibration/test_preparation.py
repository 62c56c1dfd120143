"""The preprocessed model for the quantizer: split operators are fused again."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from onnx_models import with_weights_as_inputs

from gauntlet.calibration.preparation import prepare_for_quantization
from gauntlet.runtime.session import open_session

GATE = "s = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x)"


def save(path: Path, nodes: str, opset: int = 18) -> Path:
    onnx.save(onnx_text.model(f"gates (float[batch,4] x) => (float[batch,4] y) {{ {nodes} }}", opset=opset), path)
    return path


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_hard_swish_stays_whole_and_answers_the_same(tmp_path: Path) -> None:
    model, prepared = save(tmp_path / "m.onnx", "r = Relu(x) y = HardSwish(r)"), tmp_path / "prepared.onnx"
    prepare_for_quantization(model, prepared)
    assert operators(prepared) == ["Relu", "HardSwish"]
    feed = {"x": np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)}
    np.testing.assert_array_equal(open_session(prepared).run(None, feed)[0], open_session(model).run(None, feed)[0])


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (f"{GATE} y = Mul(x, s)", 13),
        ("s = HardSigmoid(x) y = Mul(s, x)", 18),
        (f"{GATE} y = Mul(s, s)", 18),
        (f"{GATE} y = Add(x, s)", 18),
        (f"{GATE} m = Mul(x, s) y = Add(m, s)", 18),
    ],
    ids=["before opset 14", "another slope", "no gate of x", "a sum", "read twice"],
)
def test_another_gate_is_no_hard_swish(tmp_path: Path, nodes: str, opset: int) -> None:
    model = save(tmp_path / "m.onnx", nodes, opset)
    prepare_for_quantization(model, tmp_path / "prepared.onnx")
    assert operators(tmp_path / "prepared.onnx") == operators(model)


def pooled(path: Path, nodes: str, shape: str = "batch,3,5,5", opset: int = 18) -> Path:
    text = f"""
        pool (float[{shape}] x) => (float[] y)
        <
            int64[2] axes = {{2, 3}}, int64[2] last = {{-1, -2}}, int64[1] one = {{2}},
            int64[4] back = {{-1, 3, 1, 1}}, int64[4] copied = {{0, -1, 1, 1}},
            int64[4] rows = {{-1, 1, 1, 1}}, int64[2] flat = {{-1, 3}}
        >
        {{
            relu = Relu(x)
            {nodes}
        }}
    """
    onnx.save(onnx.shape_inference.infer_shapes(onnx_text.model(text, opset=opset)), path)
    return path


MEAN = "m = ReduceMean<keepdims = 0>(relu, axes)"


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (f"{MEAN} y = Reshape(m, back)", 18),
        ("m = ReduceMean<keepdims = 0>(relu, last) y = Reshape(m, copied)", 18),
        ("y = ReduceMean<keepdims = 1>(relu, axes)", 18),
        ("m = ReduceMean<axes = [2, 3], keepdims = 0>(relu) y = Reshape(m, back)", 13),
    ],
    ids=["dropped and brought back", "counted from the end", "kept", "axes as an attribute"],
)
def test_mean_of_each_channel_is_a_pool_and_answers_the_same(tmp_path: Path, nodes: str, opset: int) -> None:
    model, prepared = pooled(tmp_path / "m.onnx", nodes, opset=opset), tmp_path / "prepared.onnx"
    prepare_for_quantization(model, prepared)
    assert operators(prepared) == ["Relu", "GlobalAveragePool"]
    onnx.checker.check_model(onnx.load(prepared), full_check=True)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)}
    ours, theirs = (open_session(path).run(None, feed)[0] for path in (prepared, model))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ("m = ReduceMean<keepdims = 0>(relu, one) y = Neg(m)", "batch,3,5,5"),
        (f"{MEAN} y = Reshape(m, rows)", "batch,3,5,5"),
        (f"{MEAN} y = Reshape(m, flat)", "batch,3,5,5"),
        (f"{MEAN} r = Reshape(m, back) y = Sub(r, m)", "batch,3,5,5"),
        (f"{MEAN} y = Reshape(m, back)", "batch,3,5,5,5"),
    ],
    ids=["one axis", "another shape", "no axes brought back", "read twice", "one spatial axis stays"],
)
def test_another_mean_is_no_pool(tmp_path: Path, nodes: str, shape: str) -> None:
    prepare_for_quantization(pooled(tmp_path / "m.onnx", nodes, shape), tmp_path / "prepared.onnx")
    assert "ReduceMean" in operators(tmp_path / "prepared.onnx")


def test_listed_weight_that_was_folded_is_no_input_afterwards(tmp_path: Path) -> None:
    """Files before IR version 4 list weights among the inputs; ONNX Runtime folds a shape and keeps its input."""
    text = (
        "m (float[n,4] x) => (float[n,2,2] y) <int64[3] shape = {-1, 2, 2}> { s = Identity(shape) y = Reshape(x, s) }"
    )
    proto = with_weights_as_inputs(onnx_text.model(text, opset=9, ir_version=3))
    onnx.save(proto, tmp_path / "m.onnx")
    prepare_for_quantization(tmp_path / "m.onnx", tmp_path / "prepared.onnx")
    assert [value.name for value in onnx.load(tmp_path / "prepared.onnx").graph.input] == ["x"]
