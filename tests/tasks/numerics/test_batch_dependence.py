"""What a network makes of the other samples of a call is no rounding, however little it is."""

from collections.abc import Callable

import numpy as np
import onnx_text
import pytest
from brought_model import floats

from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from tasks.numerics import NumericsConfig, numerics

TEXT = """
    mixes (float[n,16] x) => (float[n,4] y) <float[16,4] w, float[16,4] v>
    { own = MatMul(x, w) all = ReduceMean<axes = [0], keepdims = 1>(x) other = MatMul(all, v) y = Add(own, other) }
"""


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_outputs_that_depend_on_the_other_samples_of_a_call_are_refused(
    keep_model: Callable[..., tuple[Workspace, Artifact]], share: float
) -> None:
    weights = np.random.default_rng(1).standard_normal((16, 4)).astype(np.float32)
    out, model = keep_model(onnx_text.model(TEXT, {"w": weights, "v": share * weights}, opset=13))
    x = floats(32, 16)
    expected = x @ weights + x.mean(axis=0) @ (share * weights)
    Golden({"real": GoldenCase({"x": x}, {"y": expected})}, {}).save(out.folder / "golden.npz")
    report = numerics(NumericsConfig(), out, model=model, golden=out.store_file(out.folder / "golden.npz"))
    assert [check.name for check in report.failures] == (["numerics.max_rel_error"] if share else [])
    assert "rounding" not in "".join(check.detail for check in report.checks)
    assert max(row.max_rel_error for row in report.facts.comparisons) < 1e-3
