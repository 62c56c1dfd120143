"""Loss and primary metric over the epochs of a training."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from gauntlet.frameworks.training import EpochMetrics
from gauntlet.reporting.drawing import LINE, MUTED, SERIES, embed, themed
from gauntlet.reporting.text_format import metric_name, number, percent

HEIGHT_PX = 170
DRAWABLE = 1e30
"""Larger values are left out, like NaN."""
QUANTITIES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Training loss", "train_loss", number),
    ("Validation loss", "validation_loss", number),
    ("Training {}", "train_accuracy", percent),
    ("Validation {}", "validation_accuracy", percent),
)


def draw(history: Sequence[EpochMetrics], best_epoch: int = 0, metric: str = "accuracy") -> Markup | None:
    """Return the curves of losses and primary metric, the kept epoch marked, or None for fewer than two epochs."""
    if len(history) < 2:
        return None
    epochs, texts = [epoch.epoch for epoch in history], []
    with themed(HEIGHT_PX) as figure:
        quantities = [
            quantity for quantity in QUANTITIES if all(getattr(epoch, quantity[1]) is not None for epoch in history)
        ]
        row = figure.subplots(1, len(quantities), gridspec_kw={"wspace": 0.1})
        for axes, (title, key, write) in zip(row, quantities, strict=True):
            name = title.format(metric_name(metric, short=True))
            values = [getattr(epoch, key) for epoch in history]
            _curve(axes, epochs, values, f"{name}\n{write(values[0])} → {write(values[-1])}")
            if best_epoch:
                axes.axvline(best_epoch, color=MUTED, linewidth=1, linestyle=":")
            texts.append(f"{name}: {write(values[0])} after the first epoch, {write(values[-1])} after the last")
        return embed(figure, "curves", f"{len(history)} epochs. {'; '.join(texts)}.")


def _curve(axes: Any, epochs: list[int], values: list[float], title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    drawable = [value if abs(value) < DRAWABLE else math.nan for value in values]  # NaN interrupts the line
    axes.plot(epochs, drawable, color=SERIES[0], linewidth=2, marker="o", markersize=3)
    axes.set_title(title, loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.grid(visible=True, axis="y", color=LINE)
