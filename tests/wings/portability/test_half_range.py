"""A float16 file whose sums are infinite elsewhere: ONNX Runtime's CPU computes them in float32."""

from pathlib import Path

import exported_models
import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Check
from gauntlet.runtime.session import open_session
from tasks.quantize.float16 import Float16
from wings.portability.half_range import half_range_checks

SUMS = """sums (float[n,8] x) => (float[n,1] y) <float[8,4] w, float[4,1] v>
{ s = MatMul(x, w) r = Relu(s) y = MatMul(r, v) }"""


def judged(tmp_path: Path, proto: onnx.ModelProto, inputs: NamedArrays) -> tuple[Check, Path]:
    model, half = tmp_path / "float.onnx", tmp_path / "half.onnx"
    onnx.save(proto, model)
    Float16().quantize(model, None, None, half)
    assert half_range_checks(model, model, inputs) == ()
    return half_range_checks(half, model, inputs)[0], half


@pytest.mark.parametrize(("weight", "place"), [(9000, "for samples"), (3000, "values 4 times"), (1000, "")])
def test_float16_fails_where_a_sum_leaves_its_range(tmp_path: Path, weight: float, place: str) -> None:
    proto = onnx_text.model(SUMS, {"w": np.full((8, 4), weight), "v": np.full((4, 1), 1e-4)})
    inputs: NamedArrays = {"x": np.ones((5, 8), np.float32)}
    check, half = judged(tmp_path, proto, inputs)
    assert check.passed is not bool(place)
    assert place in check.detail
    assert np.isfinite(open_session(half).run(None, inputs)[0]).all()  # nothing else shows it on this processor


def test_infinity_that_float32_has_as_well_passes(tmp_path: Path) -> None:
    samples: NamedArrays = {"x": np.random.default_rng(0).normal(size=(3, 8, 32)).astype(np.float32)}
    assert judged(tmp_path, exported_models.infinite_mask(), samples)[0].passed
