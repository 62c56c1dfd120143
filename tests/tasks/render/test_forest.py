import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.render import forest
from tasks.run_report import BenchmarkRow, CandidateEntry

RATIOS = st.floats(allow_nan=True, allow_infinity=True)


def candidate(*rows: tuple[int, float, float, float], verdict: str = "faster", target: str = "cpu") -> CandidateEntry:
    benchmark = tuple(
        BenchmarkRow(
            target=target, batch=b, median_ms=1.0, speedup=s, speedup_low=low, speedup_high=high, verdict=verdict
        )
        for b, s, low, high in rows
    )
    return CandidateEntry(name="c", parent=None, status="accepted", reason="", benchmark=benchmark)


def test_nothing_raced_gives_no_plot():
    assert forest.plan(()) is None
    assert forest.plan((candidate(),)) is None
    assert forest.plan((candidate((1, 1, 1, 1), verdict="reference"),)) is None
    assert forest.plan((candidate((1, math.nan, -math.inf, math.inf)),)) is None


def test_a_narrow_range_is_linear_and_a_wide_one_logarithmic():
    assert not forest.fit([0.9, 1.3]).log
    assert forest.fit([0.5, 3.7]).log


def test_places_keep_the_order_of_the_ratios_and_equal_factors_are_equally_far():
    scale = forest.fit([0.25, 4.0])
    places = [scale.percent(ratio) for ratio in (0.25, 0.5, 1, 2, 4)]
    steps = [b - a for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.01)


def test_the_plan_of_two_candidates():
    plot = forest.plan((candidate((8, 2.0, 1.5, 2.5), (1, 3.0, 2.9, 3.1)), candidate((1, 1.2, 0.8, math.inf))), 1.05)
    assert plot.series == ("batch 1", "batch 8")
    first, second = plot.rows
    assert [mark.series for mark in first.marks] == [0, 1]
    assert first.marks[0].low_percent < first.marks[0].x_percent < first.marks[0].high_percent
    assert plot.reference_percent < first.marks[1].low_percent
    assert second.marks[0].cut_high
    assert not second.marks[0].cut_low
    assert second.marks[0].high_percent == forest.RIGHT_PERCENT
    assert plot.needed.label == "1.05x"
    assert plot.height_px > second.marks[0].y_px > first.marks[1].y_px


def test_several_targets_are_named():
    plot = forest.plan((candidate((1, 2, 2, 2), target="cpu"), candidate((1, 2, 2, 2), target="cuda")))
    assert plot.series == ("cpu, batch 1", "cuda, batch 1")


@given(st.lists(RATIOS, max_size=8))
def test_any_axis_has_few_ordered_ticks_and_one_of_them_is_the_reference(ratios):
    scale = forest.fit(ratios)
    ticks = forest.ticks(scale)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))
    assert 1.0 in ticks
    assert all(scale.covers(tick) for tick in ticks)


@given(RATIOS, RATIOS, RATIOS)
def test_any_measurement_lands_on_the_paper(speedup, low, high):
    plot = forest.plan((candidate((1, speedup, low, high)),))
    for mark in plot.rows[0].marks if plot else ():
        for place in (mark.x_percent, mark.low_percent, mark.high_percent):
            assert forest.LEFT_PERCENT <= place <= forest.RIGHT_PERCENT
