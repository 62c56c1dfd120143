"""A quantized file may round differently at other batch sizes: what it differs from itself is no fault of the run."""

import math

import numpy as np
import onnx_text
import pytest
from brought_model import Brought, Workspaces, floats, outcomes

from gauntlet.core.errors import GateFailed
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.output_comparison import BatchNoise
from tasks.numerics import NumericsConfig, numerics

SHIFTED = """
    shifted (float[n,16] x) => (float[n,16] y)
    <float s = {0.1}, uint8 z = {128}, int64 first = {0}, float step = {0.001}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) sizes = Shape(x)
        batch = Gather(sizes, first) count = Cast<to = 1>(batch) noise = Mul(count, step) y = Add(d, noise)
    }
"""
"""Its outputs grow by 0.001 a sample in the call: noise that is the same on every processor."""


def brought(workspace: Workspaces, text: str) -> Brought:
    return Brought(workspace(), onnx_text.model(text, opset=13), {"x": floats(8, 16)})


def test_noise_of_a_quantized_file_widens_the_limits_of_what_is_made_of_it(workspace: Workspaces) -> None:
    file = brought(workspace, SHIFTED)
    report = file.normalize()
    assert outcomes(report)["opset"] == "applied"
    noise = report.facts.batch_noise
    scale = np.ptp(Golden.load(file.out.path(file.golden)).real.outputs["y"])
    assert noise.max_rel_error == {"y": pytest.approx(0.007 / scale, rel=0.01)}  # one sample a call instead of eight
    configured = NumericsConfig(samples=8)
    limits = report.facts.limits(configured)
    assert limits.error_limit("y") == pytest.approx(4 * 0.007 / scale, rel=0.01)
    model = report.artifacts["normalized"]
    numerics(limits, file.out, model=model, golden=file.golden).raise_if_blocked()
    with pytest.raises(GateFailed, match=r"numerics\.max_rel_error"):
        numerics(configured, file.out, model=model, golden=file.golden).raise_if_blocked()


def test_error_beyond_the_noise_still_fails(workspace: Workspaces) -> None:
    file, other = brought(workspace, SHIFTED), brought(workspace, SHIFTED.replace("{0.1}", "{0.3}"))
    limits = file.normalize().facts.limits(NumericsConfig(samples=8))
    with pytest.raises(GateFailed, match=r"numerics\.max_rel_error"):
        numerics(limits, other.out, model=other.model, golden=file.golden).raise_if_blocked()


LABELLED = (
    SHIFTED.replace("=> (float[n,16] y)", "=> (float[n,16] y, int64[n,16] label)")
    .replace(
        "y = Add(d, noise)",
        "y = Add(d, noise) zeros = Mul(d, zero) whole = Add(zeros, count) label = Cast<to = 7>(whole)",
    )
    .replace("float step = {0.001}", "float step = {0.001}, float zero = {0}")
)
"""It also returns the number of samples in the call, as an integer."""


def test_integers_widen_no_limit(workspace: Workspaces) -> None:
    proto = onnx_text.model(LABELLED, opset=13)
    limits = Brought(workspace(), proto, {"x": floats(8, 16)}).normalize().facts.limits(NumericsConfig(samples=8))
    assert limits.error_limit("y") < 0.1  # the label differs by up to 7
    assert (limits.agreement_limit("label"), limits.error_limit("label")) == (1, NumericsConfig().max_rel_error)


def test_noise_that_is_not_finite_leaves_the_limits_as_they_are() -> None:
    noise = BatchNoise(max_rel_error={"y": math.inf, "z": math.nan}, min_top1_agreement={"y": 0.0})
    limits = noise.widen(NumericsConfig())
    assert (limits.error_limit("y"), limits.error_limit("z"), limits.agreement_limit("y")) == (1e-4, 1e-4, 1)


def test_float32_model_keeps_the_configured_limits(workspace: Workspaces) -> None:
    report = brought(workspace, "m (float[n,16] x) => (float[n,16] y) { y = Relu(x) }").normalize()
    assert report.facts.batch_noise is None
    assert report.facts.limits(NumericsConfig()) == NumericsConfig()


HALF = "m (float[n,16] x) => (float[n,16] y) { half = Cast<to = 10>(x) p = MatMul(half, w) y = Cast<to = 1>(p) }"


@pytest.mark.parametrize(("scale", "before"), [(1.0, 1.0), (1.002, 1.0), (1.05, 1.0), (0.0, 0.01)])
def test_half_precision_before_outputs_of_float32_may_round_otherwise_than_its_source_and_no_more(
    workspace: Workspaces, scale: float, before: float
) -> None:
    weights = np.eye(16, dtype=np.float16)
    weights[3, 3] = before
    file = Brought(workspace(), onnx_text.model(HALF, {"w": weights}, opset=13), {"x": floats(8, 16)})
    facts = file.normalize().facts
    limits = facts.limits(NumericsConfig(samples=8))
    assert (facts.precision, limits.error_limit("y")) == ("float16", pytest.approx(4 * 2**-10))
    weights[3, 3] = before * scale
    other = Brought(workspace(), onnx_text.model(HALF, {"w": weights}, opset=13), {"x": floats(8, 16)})
    report = numerics(limits, other.out, model=other.model, golden=file.golden)
    assert any(check.blocks for check in report.checks) is (scale not in (1.0, 1.002))
