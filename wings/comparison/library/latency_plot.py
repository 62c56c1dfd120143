"""Plot latency against batch size, one line per pair of model and target, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gauntlet.core.errors import ConfigError
from gauntlet.reporting.drawing import image_file
from gauntlet.reporting.text_format import printable

SUFFIXES = (".png", ".svg")
MARKERS = "osD^vP*X<>"
Point = tuple[int, float, float, float]
"""Batch size; middle, low and high end of the interval in milliseconds."""


def require_image(path: Path) -> None:
    """Check the file name of a plot.

    Raises:
        ConfigError: when the suffix is not that of an image, or the folder does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name must end in {' or '.join(SUFFIXES)}")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"--plot {path}: the folder {path.resolve().parent} does not exist")


def plot_latency(lines: Mapping[str, Sequence[Point]], path: Path, title: str) -> None:
    """Draw the lines on logarithmic axes into a PNG or SVG file."""
    import matplotlib
    from matplotlib.ticker import NullLocator, ScalarFormatter

    with image_file(path, 9, 5.5, 150) as figure:
        axes = figure.subplots()
        colors = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
        for number, (name, points) in enumerate(lines.items()):
            batches, middles, lows, highs = zip(*sorted(points), strict=True)
            errors = np.subtract([middles, highs], [lows, middles])
            style = {"color": colors[number % len(colors)], "marker": MARKERS[number % len(MARKERS)]}
            dash = "-" if number < len(colors) else "--"
            axes.errorbar(
                batches, middles, errors, label=printable(name), capsize=3, markersize=5, linestyle=dash, **style
            )
        sizes = sorted({point[0] for points in lines.values() for point in points})
        axes.set(
            xscale="log", yscale="log", xlabel="batch size", ylabel="latency of one call, ms", title=printable(title)
        )
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.grid(visible=True, which="both", alpha=0.25)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
