"""The numbers behind the chart of time by operator type: one row an operator, one bar a profiled model."""

from dataclasses import dataclass

from pydantic import Field

from tasks.render import facts
from tasks.render.format import milliseconds, percent

MOST_OPERATORS = 12
TOP_PX, NAME_PX, BAR_PX, GAP_PX = 6, 18, 15, 10
WIDEST_PERCENT = 70.0
"""The bars' texts stand behind them and need the rest."""


class Operator(facts.Read):
    """All nodes of one type."""

    operator: str
    nodes: int
    ms: float = Field(ge=0)
    share: float


class Node(facts.Read):
    """One node."""

    node: str
    operator: str
    provider: str
    ms: float
    share: float


class Summary(facts.Read):
    """A trace, summed up."""

    calls: int
    call_ms: float
    operators: tuple[Operator, ...] = Field(min_length=1)
    slowest: tuple[Node, ...]
    layout_share: float
    qdq_share: float
    outside_share: float


class Profiled(facts.Read):
    """One model's profile, where there is one."""

    candidate: str
    batch: int
    profile: Summary | None


class Profiles(facts.Read):
    """What the views need of the facts of `benchmark`."""

    profiles: tuple[Profiled, ...] = ()

    @property
    def known(self) -> tuple[Profiled, ...]:
        """Those that have a profile."""
        return tuple(p for p in self.profiles if p.profile is not None)


@dataclass(frozen=True)
class Bar:
    """One operator of one model."""

    series: int
    y_px: int
    width_percent: float
    text: str


@dataclass(frozen=True)
class Row:
    """One operator."""

    name: str
    y_px: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Bars:
    """The whole chart."""

    series: tuple[str, ...]
    rows: tuple[Row, ...]
    height_px: int


def plan(profiles: Profiles | None) -> Bars | None:
    """Lay the chart out, the dearest operator first, or return None where nothing was profiled."""
    known = profiles.known if profiles else ()
    times = [{o.operator: o for o in p.profile.operators} for p in known if p.profile]
    dearest: dict[str, float] = {}
    for of_model in times:
        for name, operator in of_model.items():
            dearest[name] = max(dearest.get(name, 0.0), operator.ms)
    longest = max(dearest.values(), default=0.0)
    if longest <= 0:
        return None
    y_px, rows = TOP_PX, []
    for name in sorted(dearest, key=lambda name: -dearest[name])[:MOST_OPERATORS]:
        bars: list[Bar] = []
        for series, of_model in enumerate(times):
            if name in of_model:
                one = of_model[name]
                text = f"{milliseconds(one.ms)}, {percent(one.share)}, {one.nodes} node{'s' if one.nodes != 1 else ''}"
                width = round(max(0.3, WIDEST_PERCENT * one.ms / longest), 3)
                bars.append(Bar(series, y_px + NAME_PX + BAR_PX * len(bars), width, text))
        rows.append(Row(name, y_px + 12, tuple(bars)))
        y_px += NAME_PX + BAR_PX * len(bars) + GAP_PX
    return Bars(series=tuple(f"{p.candidate}, batch {p.batch}" for p in known), rows=tuple(rows), height_px=y_px)
