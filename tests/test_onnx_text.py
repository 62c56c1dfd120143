"""Test models that are written as text."""

import numpy as np
import onnx
import onnx_text
import pytest
from onnx import numpy_helper

TWO_PRODUCTS = """
    products (float[n,4] x) => (float[n,4] y)
    <float[4,4] w, float[4,4] v>
    {
        h = MatMul(x, w)
        y = MatMul(h, v)
    }
"""


def stored(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_random_weights_are_the_same_at_every_run_and_differ_within_a_model() -> None:
    first, again = stored(onnx_text.model(TWO_PRODUCTS)), stored(onnx_text.model(TWO_PRODUCTS))
    assert np.array_equal(first["w"], again["w"])
    assert not np.array_equal(first["w"], first["v"])


def test_given_weights_take_the_type_that_the_text_declares() -> None:
    w = stored(onnx_text.model(TWO_PRODUCTS, {"w": np.eye(4)}))["w"]
    assert w.dtype == np.float32
    assert np.array_equal(w, np.eye(4))


@pytest.mark.parametrize("weights", [{"u": np.eye(4)}, {"w": np.eye(3)}], ids=["another name", "another shape"])
def test_weights_that_do_not_fit_the_text_are_refused(weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"does not name: u|cannot reshape"):
        onnx_text.model(TWO_PRODUCTS, weights)


def test_model_is_extended_in_front_of_its_output_which_is_replaced() -> None:
    model = onnx_text.model(TWO_PRODUCTS)
    onnx_text.extend(model, "added () => (float[n,1] best) <int64[1] last = {-1}> { best = ReduceMax(y, last) }")
    onnx_text.extend(model, "{ r = Relu(x) }", 0)
    assert [node.op_type for node in model.graph.node] == ["Relu", "MatMul", "MatMul", "ReduceMax"]
    assert [output.name for output in model.graph.output] == ["best"]
    onnx.checker.check_model(model, full_check=True)
