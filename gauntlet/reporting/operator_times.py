"""Time of a call by operator type: one block per operator, one bar per profiled model."""

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gauntlet.reporting.drawing import INK, SERIES, embed, short, themed
from gauntlet.reporting.text_format import milliseconds, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_OPERATORS = 12
BAR_PX, AROUND_PX = 17, 40
GAP = 0.5
"""Between two operators, in bars."""
ROOM = 1.6
"""Width of the axis over that of the longest bar, for the text behind it."""

Operators = dict[str, list[tuple[int, Any]]]
"""By type, the slowest first: the index of each profile that has it, and its times."""


def prepare(facts: Any) -> dict[str, Any] | None:
    """Return what the page shows of the facts of `benchmark`, or None if nothing was profiled."""
    known = [profiled for profiled in facts.get("profiles", ()) if profiled["profile"] is not None]
    operators = slowest(known)
    if not operators:
        return None
    names = [f"{profiled['candidate']}, batch {profiled['batch']}" for profiled in known]
    return {"profiles": known, "drawing": draw(names, operators)}


def slowest(known: list[Any]) -> Operators:
    """Return the operators that take the most time in any profile."""
    found: Operators = {}
    for number, profiled in enumerate(known):
        for operator in profiled["profile"]["operators"]:
            found.setdefault(operator["operator"], []).append((number, operator))
    longest = {name: max(operator["ms"] for _, operator in bars) for name, bars in found.items()}
    names = sorted((name for name in found if longest[name] > 0), key=lambda name: -longest[name])
    return {name: found[name] for name in names[:MOST_OPERATORS]}


def draw(names: list[str], operators: Operators) -> Markup:
    """Return the chart."""
    bars = sum(len(bars) + GAP for bars in operators.values())
    with themed(AROUND_PX + BAR_PX * bars) as figure:
        _fill(figure, names, operators)
        texts = (f"{name}: {names[n]}: {_words(one)}" for name, bars_of in operators.items() for n, one in bars_of)
        return embed(figure, "kernels", f"Time of a call by operator type. {'; '.join(texts)}.")


def _fill(figure: "Figure", names: list[str], operators: Operators) -> None:
    axes = figure.subplots()
    y, ticks = 0.0, []
    for name, bars in operators.items():
        ticks.append((y + (len(bars) - 1) / 2, short(name)))
        for number, one in bars:
            axes.barh(y, one["ms"], height=0.75, color=SERIES[number % len(SERIES)])
            axes.annotate(_words(one), (one["ms"], y), (6, 0), textcoords="offset points", va="center", color=INK)
            y += 1
        y += GAP
    for number, name in enumerate(names):
        axes.barh(0, 0, color=SERIES[number % len(SERIES)], label=short(name, 60))
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.set_ylim(y - GAP - 0.4, -0.6)
    axes.set_xlim(0, ROOM * max(one["ms"] for bars in operators.values() for _, one in bars))
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2)


def _words(operator: Any) -> str:
    nodes = f"{operator['nodes']} node" + ("" if operator["nodes"] == 1 else "s")
    return f"{milliseconds(operator['ms'])}, {percent(operator['share'])}, {nodes}"
