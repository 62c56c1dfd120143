"""The curves of a training: drawn from two epochs on, broken where a value is no number."""

import math
import re

from gauntlet.reporting import training_curves


def epoch(number: int, loss: float, accuracy: float = 0.5) -> dict[str, float]:
    return {"epoch": number, "train_loss": loss, "validation_loss": loss, "validation_accuracy": accuracy}


def lines(svg: str) -> list[str]:
    """The paths of the first curve."""
    return re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--c0\); stroke-width: 2', svg)


def test_one_epoch_is_no_curve() -> None:
    assert training_curves.draw([]) is None
    assert training_curves.draw([epoch(1, 2.0)]) is None


def test_curves_tell_where_they_begin_and_end() -> None:
    svg = training_curves.draw([epoch(1, 2.0, 0.25), epoch(2, 1.0, 0.75)])
    assert svg is not None
    assert "Validation accuracy: 25.0 % after the first epoch, 75.0 % after the last" in svg
    assert len(lines(svg)) == 3


def test_a_curve_is_broken_where_a_value_is_no_number() -> None:
    whole = training_curves.draw([epoch(n, 1.0 / n) for n in range(1, 6)])
    for odd in (math.nan, math.inf, 1e300):
        broken = training_curves.draw([epoch(n, odd if n == 3 else 1.0 / n) for n in range(1, 6)])
        assert [lines(svg)[0].count("M") for svg in (whole, broken)] == [1, 2]
