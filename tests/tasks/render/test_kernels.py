"""The chart of time by operator type: bars in proportion, and nothing at all where nothing was profiled."""

import re

import pytest

from tasks.render import kernels
from tasks.render.html import render_html


def profile(candidate: str, **operators: float) -> dict[str, object]:
    total = sum(operators.values())
    times = [{"operator": name, "nodes": 2, "ms": ms, "share": ms / total} for name, ms in operators.items()]
    slowest = [{"node": "/conv1/Conv", "operator": "Conv", "provider": "CPU", "ms": 1.5, "share": 0.4}]
    shares = {"layout_share": 0.1, "qdq_share": 0.02, "outside_share": 0.05}
    told = {"calls": 20, "call_ms": total, "operators": times, "slowest": slowest, **shares}
    return {"candidate": candidate, "target": "ort-cpu", "batch": 1, "unprofiled_ms": 1.0, "profile": told}


BOTH = kernels.Profiles.model_validate(
    {"profiles": [profile("fp32", Conv=4.0, Add=1.0), profile("int8", QLinearConv=1.0, Add=0.5)]}
)


def test_bars_are_in_proportion_when_two_models_were_profiled() -> None:
    chart = kernels.plan(BOTH)
    assert chart.series == ("fp32, batch 1", "int8, batch 1")
    assert [row.name for row in chart.rows] == ["Conv", "Add", "QLinearConv"]
    widths = {(row.name, bar.series): bar.width_percent for row in chart.rows for bar in row.bars}
    assert widths == {
        ("Conv", 0): kernels.WIDEST_PERCENT,
        ("Add", 0): pytest.approx(kernels.WIDEST_PERCENT / 4),
        ("Add", 1): pytest.approx(kernels.WIDEST_PERCENT / 8),
        ("QLinearConv", 1): pytest.approx(kernels.WIDEST_PERCENT / 4),
    }
    places = [bar.y_px for row in chart.rows for bar in row.bars]
    assert places == sorted(set(places))
    assert chart.height_px > places[-1] + 11


def test_chart_stays_small_when_there_are_many_operators() -> None:
    many = profile("fp32", **{f"Op{number}": 1.0 + number for number in range(40)})
    chart = kernels.plan(kernels.Profiles.model_validate({"profiles": [many]}))
    assert [row.name for row in chart.rows] == [f"Op{number}" for number in range(39, 39 - kernels.MOST_OPERATORS, -1)]


@pytest.mark.parametrize("told", [{}, {"profiles": []}, {"profiles": [profile("fp32", Conv=1.0) | {"profile": None}]}])
def test_nothing_is_drawn_when_nothing_was_profiled(told: dict[str, object]) -> None:
    assert kernels.plan(kernels.Profiles.model_validate(told)) is None
    assert kernels.plan(None) is None


def test_page_shows_where_the_time_goes_when_the_race_profiled(passed) -> None:
    assert 'id="kernels"' not in render_html(passed)
    stages = tuple(
        s.replace(facts={**s.facts, "profiles": [profile("fp32", Conv=4.0), profile("<b>int8", QLinearConv=1.0)]})
        if s.stage == "benchmark"
        else s
        for s in passed.stages
    )
    page = render_html(passed.replace(stages=stages))
    assert 'id="kernels"' in page
    text = " ".join(re.sub(r"<[^>]+>", " ", page[page.index('id="kernels"') :]).split())
    assert "Conv: fp32, batch 1: 4.00 ms, 100.0 %, 2 nodes" in text
    assert "fp32: slowest nodes; layout 10.0 %, Q/DQ 2.0 %, outside of kernels 5.0 %" in text
    assert "/conv1/Conv Conv CPU 1.50 ms 40.0 %" in text
    assert "<b>int8" not in page


def test_page_says_who_was_faster_when_a_candidate_left_the_race_early(passed) -> None:
    first, *others = passed.candidates
    loser = others[-1]
    row = (
        passed.candidates[1]
        .benchmark[0]
        .replace(verdict="slower", dropped_after_round=3, dropped_for="static-u8s8", dropped_as="slower")
        .replace(more_rounds=None)
    )
    idle = row.replace(verdict="faster", dropped_for="fp32", dropped_as="no faster")
    unsure = row.replace(verdict="not resolved", dropped_after_round=None, dropped_for=None, dropped_as=None)
    unsure = unsure.replace(more_rounds=17)
    page = render_html(passed.replace(candidates=(first, *others[:-1], loser.replace(benchmark=(row, idle, unsure)))))
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "slower than static-u8s8, dropped after round 3" in text
    assert "no faster than fp32, dropped after round 3" in text
    assert "not resolved about 17 more rounds" in text
    assert "slower than static-u8s8 (dropped after round 3), median" in page
