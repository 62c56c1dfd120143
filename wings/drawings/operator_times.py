"""Time of a call by operator type: one block per operator, one bar per profiled model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gauntlet.reporting.drawing import INK, SERIES, embed, short, themed
from gauntlet.reporting.text_format import counted, milliseconds, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_OPERATORS = 12
BAR_PX, AROUND_PX = 17, 40
GAP = 0.5
"""Between two operators, in bars."""
ROOM = 1.6
"""Width of the axis over that of the longest bar, for the text behind it."""

Operators = dict[str, list[tuple[int, Any]]]
"""By type, the slowest first: the index of each profile that has it, and its times."""


def slowest(known: Sequence[Any]) -> Operators:
    """Return the operators that take the most time in any profile."""
    times: Operators = {}
    for number, profiled in enumerate(known):
        for operator in profiled.profile.operators:
            times.setdefault(operator.operator, []).append((number, operator))
    longest = {name: max(operator.ms for _, operator in bars) for name, bars in times.items()}
    names = sorted((name for name in times if longest[name] > 0), key=lambda name: -longest[name])
    return {name: times[name] for name in names[:MAX_OPERATORS]}


def draw(profiles: Sequence[Any]) -> Markup:
    """Return the chart of some models' profiles."""
    names, operators = [f"{profile.candidate}, batch {profile.batch}" for profile in profiles], slowest(profiles)
    bars = sum(len(bars) + GAP for bars in operators.values())
    with themed(AROUND_PX + BAR_PX * bars) as figure:
        _fill(figure, names, operators)
        texts = (f"{name}: {names[n]}: {_words(bar)}" for name, bars_of in operators.items() for n, bar in bars_of)
        return embed(figure, "kernels", f"Time of a call by operator type. {'; '.join(texts)}.")


def _fill(figure: "Figure", names: list[str], operators: Operators) -> None:
    axes = figure.subplots()
    y, ticks = 0.0, []
    for name, bars in operators.items():
        ticks.append((y + (len(bars) - 1) / 2, short(name)))
        for number, bar in bars:
            axes.barh(y, bar.ms, height=0.75, color=SERIES[number % len(SERIES)])
            axes.annotate(_words(bar), (bar.ms, y), (6, 0), textcoords="offset points", va="center", color=INK)
            y += 1
        y += GAP
    for number, name in enumerate(names):
        axes.barh(0, 0, color=SERIES[number % len(SERIES)], label=short(name, 60))
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.set_ylim(y - GAP - 0.4, -0.6)
    axes.set_xlim(0, ROOM * max(bar.ms for bars in operators.values() for _, bar in bars))
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2)


def _words(operator: Any) -> str:
    return f"{milliseconds(operator.ms)}, {percent(operator.share)}, {counted(operator.nodes, 'node')}"
