"""A quantized file may round differently at other batch sizes: what it differs from itself is no fault of the run."""

import onnx_text
import pytest
from brought_model import Brought, Workspaces, floats, outcomes

from gauntlet.core.errors import GateFailed
from tasks.numerics import NumericsConfig, numerics

SHIFTED = """
    shifted (float[n,16] x) => (float[n,16] y)
    <float s = {0.1}, uint8 z = {128}, int64 first = {0}, float step = {0.001}>
    {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        sizes = Shape(x)
        batch = Gather(sizes, first)
        count = Cast<to = 1>(batch)
        noise = Mul(count, step)
        y = Add(d, noise)
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
    assert noise is not None
    assert noise.max_abs_error == pytest.approx(0.007, rel=0.01)  # one sample a call instead of eight
    configured = NumericsConfig(samples=8)
    limits = report.facts.limits(configured)
    assert limits.max_abs_error == pytest.approx(4 * 0.007, rel=0.01)
    model = report.artifacts["normalized"]
    numerics(limits, file.out, model=model, golden=file.golden).raise_if_blocked()
    with pytest.raises(GateFailed, match=r"numerics\.max_abs_error"):
        numerics(configured, file.out, model=model, golden=file.golden).raise_if_blocked()


def test_error_beyond_the_noise_still_fails(workspace: Workspaces) -> None:
    file, other = brought(workspace, SHIFTED), brought(workspace, SHIFTED.replace("{0.1}", "{0.3}"))
    limits = file.normalize().facts.limits(NumericsConfig(samples=8))
    with pytest.raises(GateFailed, match=r"numerics\.max_abs_error"):
        numerics(limits, other.out, model=other.model, golden=file.golden).raise_if_blocked()


def test_float32_model_keeps_the_configured_limits(workspace: Workspaces) -> None:
    report = brought(workspace, "m (float[n,16] x) => (float[n,16] y) { y = Relu(x) }").normalize()
    assert report.facts.batch_noise is None
    assert report.facts.limits(NumericsConfig()) == NumericsConfig()
