"""Boxes that change places are no difference, nor lists that rounding decides; a lost, moved or renamed box is."""

from collections.abc import Callable

import numpy as np
import onnx_text
import pytest

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.ragged import joined_samples
from gauntlet.core.report import Report
from gauntlet.core.signature import BoxDecoding, Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances, output_difference
from tasks.numerics import NumericsConfig, NumericsFacts, numerics
from wings.detection.set_order import in_expected_order

RNG = np.random.default_rng(0)
LENGTHS = (4, 7, 1, 6)
SAMPLES = [(RNG.uniform(0, 64, (n, 4)), RNG.integers(0, 3, n), RNG.permutation(n) / 10 + 0.3) for n in LENGTHS]


DECODE = BoxDecoding(kind="suppressed", scores="s", boxes="b", classes="c")
SETS = Signature(task="detection", inputs=(), outputs=(), layout="NCHW", decode=DECODE)


def outputs(changed: int = -1, **parts: np.ndarray) -> NamedArrays:
    """Return padded boxes, classes and scores; with the given ones for one sample."""
    rows = [(b, c, s) if i != changed else (parts["b"], parts["c"], parts["s"]) for i, (b, c, s) in enumerate(SAMPLES)]
    return {name: joined_samples([row[k][None] for row in rows]) for k, name in enumerate("bcs")}


def within(actual: NamedArrays) -> bool:
    expected = outputs()
    ordered = in_expected_order(actual, expected, SETS)
    rows = [output_difference("real", 1, name, ordered[name], expected[name]) for name in expected]
    return all(row.within(Tolerances()) for row in rows)


def test_rows_in_another_order_are_equal() -> None:
    boxes, classes, scores = SAMPLES[1]
    order = RNG.permutation(7)
    assert within(outputs(1, b=boxes[order] + 1e-4, c=classes[order], s=scores[order]))


@pytest.mark.parametrize("fault", ["lost", "added", "moved", "renamed"])
def test_row_that_is_not_the_same_is_a_difference(fault: str) -> None:
    boxes, classes, scores = (part.copy() for part in SAMPLES[1])
    if fault in ("lost", "added"):
        index = [0, 1, 2, 3, 4, 5] if fault == "lost" else [*range(7), 2]
        boxes, classes, scores = boxes[index], classes[index], scores[index]
    elif fault == "moved":
        boxes[3, 0] += 1
    else:
        classes[3] += 1
    assert not within(outputs(1, b=boxes, c=classes, s=scores))


Keep = Callable[..., tuple[Workspace, Artifact]]
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
