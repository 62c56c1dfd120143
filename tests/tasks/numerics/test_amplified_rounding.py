"""A limit follows what rounding does in this network: as far as that, and no further."""

from collections.abc import Callable

import numpy as np
import onnx_text
import pytest
from numpy.typing import NDArray

from gauntlet.core.artifact import Artifact
from gauntlet.core.ragged import joined_samples
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from tasks.numerics import NumericsConfig, NumericsFacts, numerics

Keep = Callable[..., tuple[Workspace, Artifact]]
NETWORK = """m (float[n,16] x) => (float[n,4] y) <float[16,4] a, float[16,4] b, float[4] offset, float scale> {
    one = MatMul(x, a)  other = MatMul(x, b)  rest = Sub(one, other)  large = Mul(rest, scale)  y = Add(large, offset)
}"""
"""Two products of which only the difference counts: the nearer they are, the more their rounding is amplified."""


def compared(keep: Keep, nearness: float, error: float, **limits: float) -> Report[NumericsFacts]:
    """Compare a network whose output, with a range of about 1, is off by `error`, with what it should compute."""
    generator = np.random.default_rng(0)
    a, step = generator.normal(size=(16, 4)).astype(np.float32), generator.normal(size=(16, 4)).astype(np.float32)
    b: NDArray[np.float32] = (a - nearness * step).astype(np.float32)
    inputs = generator.normal(size=(32, 16)).astype(np.float32)
    offset = np.array([error, 0, 0, 0], np.float32)
    out, model = keep(
        onnx_text.model(NETWORK, {"a": a, "b": b, "offset": offset, "scale": np.float32(0.05 / nearness)})
    )
    wide = inputs.astype(np.float64)
    exact = (wide @ a.astype(np.float64) - wide @ b.astype(np.float64)) * (0.05 / nearness)
    case = GoldenCase({"x": inputs}, {"y": exact.astype(np.float32)})
    Golden({"real": case}, {}).save(out.folder / "golden.npz")
    golden = out.store_file(out.folder / "golden.npz")
    return numerics(NumericsConfig(**limits), out, model=model, golden=golden)


def test_error_that_the_network_makes_of_rounding_passes_and_the_limit_says_so(keep_model: Keep) -> None:
    report = compared(keep_model, 3e-4, 0)
    (check,) = [check for check in report.checks if check.name == "numerics.max_rel_error"]
    assert check.passed
    assert 1e-4 < check.value < check.limit <= 1e-3
    assert "the last digits of the weights alone change 'y' by" in check.detail


@pytest.mark.parametrize(
    ("nearness", "error", "limits"),
    [
        (1.0, 2e-4, {}),  # a network that amplifies nothing
        (3e-4, 3e-3, {}),  # one that does, and an error that its rounding does not explain
        (1e-5, 0, {}),  # one whose rounding alone changes more than ten times the limit
        (3e-4, 0, {"max_rel_error": 1e-12}),  # a limit that a user has set is not forgotten
    ],
)
def test_error_beyond_what_rounding_explains_is_refused(
    keep_model: Keep, nearness: float, error: float, limits: dict[str, float]
) -> None:
    (failure,) = compared(keep_model, nearness, error, **limits).failures
    assert failure.name == "numerics.max_rel_error"


LISTED = """m (float[1,8] x) => (float[k] y) <float[8,8] w, float least = {0.5}, int64[1] flat = {-1}> {
    scores = MatMul(x, w)  found = Greater(scores, least)
    each = Reshape(scores, flat)  which = Reshape(found, flat)  y = Compress(each, which)
}"""
"""The scores above a half, as a detector selects boxes."""


def listed(keep: Keep, ties: int, wrong: int) -> Report[NumericsFacts]:
    """Compare a list whose first samples' scores are the limit itself, which the source selects, and wrong ones."""
    inputs = np.random.default_rng(0).uniform(0.6, 1, (32, 8)).astype(np.float32)
    inputs[:, :3], inputs[:, 3], inputs[:ties] = 0.2, np.linspace(0.1, 0.9, 32), 0.5
    lists = [row[None] if place < ties else row[row > 0.5][None] for place, row in enumerate(inputs)]
    lists = [row + 0.1 * (place >= 32 - wrong) for place, row in enumerate(lists)]
    out, model = keep(onnx_text.model(LISTED, {"w": np.eye(8, dtype=np.float32)}))
    Golden({"real": GoldenCase({"x": inputs}, {"y": joined_samples(lists)})}, {}).save(out.folder / "golden.npz")
    golden = out.store_file(out.folder / "golden.npz")
    return numerics(NumericsConfig(), out, model=model, golden=golden)


def test_samples_whose_list_rounding_decides_are_left_out_and_counted(keep_model: Keep) -> None:
    report = listed(keep_model, ties=2, wrong=0)
    assert not report.failures
    assert report.facts.samples == {"real": 30}
    assert "the scores of 2 of 32 real samples are nearly ties" in report.checks[-1].detail


def test_lists_that_rounding_decides_nearly_everywhere_are_refused_with_the_reason(keep_model: Keep) -> None:
    failure = listed(keep_model, ties=12, wrong=0).failures[0]
    assert "the scores of 12 of 32 real samples are nearly ties" in failure.detail
    assert "bring trained weights" in failure.remedy


def test_wrong_lists_are_refused_beside_those_that_rounding_decides(keep_model: Keep) -> None:
    report = listed(keep_model, ties=2, wrong=1)
    assert report.failures
    assert "nearly ties" not in str(report.failures[0])
