"""Latency against batch size as a picture, a line a pair of model and target, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import printable

SUFFIXES = (".png", ".svg")
MARKERS = "osD^vP*X<>"
Point = tuple[int, float, float, float]
"""Batch size, and in milliseconds the middle, the low and the high end of the interval."""


def require_picture(path: Path) -> None:
    """Refuse a file name that is no picture's.

    Raises:
        ConfigError: when it ends otherwise than a picture's does, or its folder is not there.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name must end in {' or '.join(SUFFIXES)}")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.resolve().parent}")


def plot_latency(lines: Mapping[str, Sequence[Point]], path: Path, title: str) -> None:
    """Draw the lines on logarithmic axes into a PNG or SVG file."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator, ScalarFormatter

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, (name, points) in enumerate(lines.items()):
        batches, middles, lows, highs = zip(*sorted(points), strict=True)
        errors = [[m - low for m, low in zip(middles, lows, strict=True)]]
        errors += [[high - m for m, high in zip(middles, highs, strict=True)]]
        style = {"color": colours[number % len(colours)], "marker": MARKERS[number % len(MARKERS)]}
        dash = "-" if number < len(colours) else "--"
        axes.errorbar(batches, middles, errors, label=printable(name), capsize=3, markersize=5, linestyle=dash, **style)
    sizes = sorted({point[0] for points in lines.values() for point in points})
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="latency of one call, ms", title=printable(title))
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)
