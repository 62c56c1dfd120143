"""Zeros that pad a maximum stay zeros, also where the runtime would forget them."""

import numpy as np
import onnx
import onnx_text
import pytest
from brought_model import Brought, Workspaces, floats

from gauntlet.core.errors import GateFailed
from gauntlet.onnx_model.normalization.padding import keep_zero_padding
from gauntlet.runtime.session import open_session
from tasks.numerics import NumericsConfig, numerics

PADDED = """padded (float[n,3,8,8] x) => (float[n,3,5,5] y)
<int64[8] pads = {{0,0,1,1,0,0,1,1}}, float zero = {{0.0}}, float one = {{1.0}}>
{{ {before}
   p = Pad{mode}({values})
   y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(p) }}"""
NEGATIVE = -1 - np.abs(floats(20, 3, 8, 8))


def padded(values: str = "x, pads, zero", before: str = "", mode: str = "", opset: int = 17) -> onnx.ModelProto:
    return onnx_text.model(PADDED.format(values=values, before=before, mode=mode), opset=opset)


OLD = '<mode = "constant", pads = [0,0,1,1,0,0,1,1], value = 0.0>'


@pytest.mark.parametrize(
    ("values", "opset", "mode"),
    [("x, pads, zero", 17, ""), ("x, pads", 13, ""), ("x, pads, zero", 23, ""), ("x", 9, OLD)],
)
def test_padding_that_the_runtime_forgets_is_kept_and_nothing_else_is_shipped(
    workspace: Workspaces, values: str, opset: int, mode: str
) -> None:
    brought = Brought(workspace(), padded(values, mode=mode, opset=opset), {"x": NEGATIVE})
    wrong = numerics(NumericsConfig(), brought.out, model=brought.model, golden=brought.golden)
    with pytest.raises(GateFailed, match=r"right without the graph optimizations of ONNX Runtime"):
        wrong.raise_if_blocked()
    report = brought.normalize()
    assert report.facts.repaired
    kept = report.artifacts["normalized"]
    numerics(NumericsConfig(), brought.out, model=kept, golden=brought.golden).raise_if_blocked()
    (outputs,) = open_session(brought.out.path(kept)).run(None, {"x": NEGATIVE})
    assert outputs.max() == pytest.approx(0, abs=1e-30)  # the zeros at the edges


@pytest.mark.parametrize(
    "proto",
    [
        padded("x, pads, one"),
        padded("r, pads, zero", before="r = Relu(x)"),  # the runtime may move it: the maximum is the same
        padded("x, pads", mode='<mode = "reflect">'),
    ],
)
def test_other_padding_is_left_alone(proto: onnx.ModelProto) -> None:
    assert keep_zero_padding(proto) == ""
