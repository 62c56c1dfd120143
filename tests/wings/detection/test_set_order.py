"""Boxes that change places are no difference; a box that is lost, moved or renamed is one."""

import numpy as np
import pytest

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.ragged import joined_samples
from gauntlet.core.signature import BoxDecoding, Signature
from gauntlet.metrics.output_comparison import Tolerances, output_difference
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
