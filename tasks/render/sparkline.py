"""The training's course as small curves: numbers to points in a box of 100 by 30."""

import math
from dataclasses import dataclass

from tasks.render.facts import Epoch
from tasks.render.format import number, percent

WIDTH, HEIGHT = 100.0, 30.0


@dataclass(frozen=True)
class Curve:
    """One quantity over the epochs; a value that is no number interrupts the line."""

    label: str
    lines: tuple[str, ...]
    first: str
    last: str


def curves(history: tuple[Epoch, ...]) -> tuple[Curve, ...]:
    """Return the curves worth a look, or none where there are too few epochs for a course."""
    if len(history) < 2:
        return ()
    quantities = (
        ("Training loss", [e.train_loss for e in history], number),
        ("Validation loss", [e.validation_loss for e in history], number),
        ("Validation accuracy", [e.validation_accuracy for e in history], percent),
    )
    return tuple(Curve(name, lines(values), write(values[0]), write(values[-1])) for name, values, write in quantities)


def lines(values: list[float]) -> tuple[str, ...]:
    """Return one `x,y x,y` text for each stretch of at least two finite values, the largest value at the top."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    spread = high / 2 - low / 2  # halves: the difference of two finite values can be infinite
    stretches: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if not math.isfinite(value):
            stretches.append([])
            continue
        share = (value / 2 - low / 2) / spread if spread else 0.5
        stretches[-1].append(f"{WIDTH * index / max(1, len(values) - 1):.2f},{HEIGHT * (1 - share):.2f}")
    return tuple(" ".join(points) for points in stretches if len(points) > 1)
