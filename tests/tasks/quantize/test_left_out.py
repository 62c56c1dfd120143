"""Nodes that ONNX Runtime's quantizer would write wrong files for stay in float."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import applied, brought

from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from tasks.quantize import QuantizeFacts
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.left_out import without_own_range
from tasks.quantize.static import StaticInt8, head_nodes

EXACT = StaticInt8().without_saturation(Processor.current())
WIDE = "m (float[n,4,64] x) => (float[n,4,6] y) <float[1,64,6] w> { y = MatMul(x, w) }"
VECTOR = "m (float[n,64] x) => (float[n] y) <float[64] w> { y = MatMul(x, w) }"
BESIDE = """
    m (float[n,16] x) => (float[n,8] h, float[n,4] y) <float[16,8] w, float[8] b, float[8,4] v>
    { h = Gemm(x, w, b) r = Relu(h) y = MatMul(r, v) }
"""
BEFORE_A_SUM = """
    m (float[n,16] x) => (float[n,8] y) <float[16,8] w, float[8] b, float[8,8] v>
    { h = Gemm(x, w, b) r = Relu(h) p = MatMul(r, v) y = Add(h, p) }
"""
COMPUTED = """
    m (float[1,16] x) => (float[1,4] y)
    <float[16,8] w, float[8] b, float[8,4] v, float k = {1}>
    {
        s = ReduceMax<keepdims = 0>(x) high = Mul(s, k) low = Neg(high)
        h = Gemm(x, w, b) r = Clip(h, low, high) y = MatMul(r, v)
    }
"""
FAR_FROM_ZERO = """
    m (float[n,16] x) => (float[n,4] y) <float[16,8] w, float[8] b, float[8,4] v, float low = {0.5}, float high = {3}>
    { h = Gemm(x, w, b) r = Clip(h, low, high) y = MatMul(r, v) }
"""


def noise_db(out: Workspace, proto: onnx.ModelProto, report: Report[QuantizeFacts]) -> float:
    """Return how far the outputs of a recipe's file are from the model's."""
    model, samples = brought(out, proto)
    with np.load(out.path(samples)) as file:
        inputs = dict(file)
    files = (report.artifacts["model"], model)
    return worst_noise_db(
        *([*batched_inference(open_session(out.path(each)), inputs).run(16).values()] for each in files)
    )


@pytest.mark.parametrize(
    ("recipe", "text", "reason"),
    [
        (EXACT, WIDE, "its weights have not two axes"),
        (EXACT.replace(format="qoperator"), WIDE, "its weights have not two axes"),
        (DynamicInt8(weights="s8", per_channel=True), WIDE, "its weights have not two axes"),
        (EXACT.replace(format="qoperator"), VECTOR, "its weights have not two axes"),
        (EXACT, BESIDE, "its range is not that of 'h'"),
        (EXACT.replace(format="qoperator"), BESIDE, "its range is not that of 'h'"),
        (EXACT.replace(format="qoperator"), BEFORE_A_SUM, "its range is not that of 'h'"),
        (EXACT, FAR_FROM_ZERO, "its range is computed, or does not include zero"),
        (EXACT, COMPUTED, "its range is computed"),
    ],
)
def test_outputs_stay_near_those_of_the_model(
    workspace: Callable[..., Workspace], recipe: Any, text: str, reason: str
) -> None:
    out, proto = workspace(), onnx_text.model(text)
    report = applied(recipe, out, proto)
    [left] = report.facts.left_out.values()
    assert left.startswith(reason)
    assert noise_db(out, proto, report) > 20


def test_integer_operators_are_written_beside_a_choice_between_tensors(workspace: Callable[..., Workspace]) -> None:
    text = """
        m (float[n,64] x) => (float[n,8] y) <float[64,8] w, float zero = {0}, float low = {-2}>
        { h = MatMul(x, w) s = ReduceSum(x) positive = Greater(s, zero) y = Where(positive, h, low) }
    """
    out, proto = workspace(), onnx_text.model(text)
    assert noise_db(out, proto, applied(EXACT.replace(format="qoperator"), out, proto)) > 20


def test_limits_that_are_attributes_count_as_those_that_are_inputs() -> None:
    old = "m (float[n,8] x) => (float[n,8] y) { [far] r = Clip<min = 0.5>(x) [near] y = Clip<max = 6.0>(r) }"
    assert [*without_own_range(onnx_text.model(old, opset=10).graph)] == ["far"]


def test_bias_of_two_layers_has_the_scale_of_each(workspace: Callable[..., Workspace]) -> None:
    text = """
        m (float[n,16] x) => (float[n,8] y) <float[16,8] w, float[8,8] v, float[8] b, float k = {100}>
        { h = Gemm(x, w, b) r = Relu(h) large = Mul(r, k) y = Gemm(large, v, b) }
    """
    out, proto = workspace(), onnx_text.model(text, {"b": np.full(8, 3)})
    reports = [applied(EXACT.replace(format=form), out, proto) for form in ("qdq", "qoperator")]
    assert noise_db(out, proto, reports[1]) > noise_db(out, proto, reports[0]) - 3


def test_bias_without_a_name_is_none(workspace: Callable[..., Workspace]) -> None:
    proto = onnx_text.model("m (float[n,3,4,4] x) => (float[n,8,4,4] y) <float[8,3,1,1] w> { y = Conv(x, w) }")
    proto.graph.node[0].input.append("")
    report = applied(EXACT.replace(format="qoperator"), workspace(), proto)
    assert (report.facts.left_out, report.facts.nothing_to_gain) == ({}, "")


def test_weights_of_two_axes_have_a_scale_for_each_channel(workspace: Callable[..., Workspace]) -> None:
    report = applied(EXACT, workspace(), onnx_text.model(WIDE.replace("[1,64,6]", "[64,6]")))
    assert report.facts.left_out == {}


def test_deconvolution_in_groups_with_a_bias_stays_in_float_where_channels_have_scales(
    workspace: Callable[..., Workspace],
) -> None:
    text = """
        m (float[n,3,8,8] x) => (float[n,6,16,16] y) <float[4,3,3,3] w, float[4,3,4,4] v, float[6] b>
        { h = Conv<pads = [1,1,1,1]>(x, w) y = ConvTranspose<strides = [2,2], pads = [1,1,1,1], group = 2>(h, v, b) }
    """
    proto = onnx_text.model(text, opset=17)
    proto.graph.node[1].name = "up"
    report = applied(EXACT, workspace(), proto)
    assert list(report.facts.left_out) == ["up"]
    assert "bias" in report.facts.left_out["up"]
    assert not applied(EXACT.replace(per_channel=False), workspace(), proto).facts.left_out


def test_head_does_not_grow_by_outputs_and_inputs_without_a_name() -> None:
    proto = onnx_text.model("""
        m (float[t,1,8] x) => (float[t,1,4] y) <float[1,16,8] w, float[1,16,4] r, float[4,4] v, float six = {6}>
        {
            [before] a = Relu(x) [layer] , h, = LSTM<hidden_size = 4>(a, w, r)
            [last] p = MatMul(h, v) [limits] y = Clip(p, , six)
        }
    """)
    onnx.checker.check_model(proto)
    assert head_nodes(proto.graph) == {"last", "limits"}
