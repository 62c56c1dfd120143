"""Stored shapes are inferred again, and a fixed batch becomes dynamic."""

import numpy as np
import onnx
import onnx_text
import pytest
from normalized_models import X, outputs, plain, sample_rates
from onnx import TensorProto, helper

from gauntlet.onnx_model.graph import required_inputs, tensor_shape
from gauntlet.onnx_model.normalization.batch import fixed_batch, free_batch
from gauntlet.onnx_model.normalization.fixed_inputs import fix_inputs
from gauntlet.onnx_model.normalization.shapes import conflicting_shapes, infer_shapes_anew


def test_wrong_stored_shapes_are_inferred_again() -> None:
    proto = plain()
    proto.graph.value_info.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 128]))
    with pytest.raises(Exception, match="128"):
        onnx.checker.check_model(proto, full_check=True)
    assert conflicting_shapes(proto) == {"p": (("n", 128), ("n", 4))}
    assert "1 stored ones were wrong: 'p' was stored as [n, 128] and is [n, 4]" in infer_shapes_anew(proto)
    onnx.checker.check_model(proto, full_check=True)


def test_wrong_shape_of_an_output_is_corrected() -> None:
    proto = plain()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512]))
    assert infer_shapes_anew(proto)
    assert tensor_shape(proto.graph.output[0]) == ("n", 4)


def test_shapes_that_cannot_be_inferred_are_kept_as_stored() -> None:
    text = "own (float[1,16] x) => (float[1,16] y) { h = com.microsoft.QuickGelu(x)  y = Relu(h) }"
    proto = onnx_text.model(text, domains={"com.microsoft": 1})
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 16]))
    assert infer_shapes_anew(proto, always=True)
    assert {v.name: tensor_shape(v) for v in proto.graph.value_info}["h"] == (1, 16)


def test_fixed_batch_is_found_and_made_dynamic() -> None:
    proto = onnx_text.model("""
        frozen (float[1,16] x) => (float[1,4,4] y) <int64[3] shape = {1, 4, 4}>
        { r = Relu(x)  y = Reshape(r, shape) }
    """)
    assert fixed_batch(proto.graph) == (1, "")
    assert "from 1 Reshape" in free_batch(proto, required_inputs(proto.graph), 1)
    three = np.repeat(X, 3, axis=0)
    assert outputs(proto, x=three)[0].shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (plain(), "the batch is dynamic"),
        (sample_rates(), "no first axis of one size"),
        (onnx_text.model("two (float[1,16] x) => (float[16,1] y) { y = Transpose(x) }"), "no first axis of one size"),
    ],
)
def test_model_without_a_fixed_batch_says_why(model: onnx.ModelProto, reason: str) -> None:
    size, why = fixed_batch(model.graph)
    assert size is None
    assert reason in why


def test_branch_over_the_whole_batch_keeps_it_fixed() -> None:
    proto = sample_rates()
    fix_inputs(proto, {"sr": 1})
    assert fixed_batch(proto.graph) == (None, "control flow decides for all samples of a call at once")
