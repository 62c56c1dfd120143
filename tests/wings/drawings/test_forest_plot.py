import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reported_runs import raced

from gauntlet.core.run_report import CandidateEntry
from gauntlet.reporting.drawing import themed
from wings.drawings import forest_plot

RATIOS = st.floats(allow_nan=True, allow_infinity=True)


def candidate(
    *rows: tuple[int, float, float, float], name: str = "c", verdict: str = "faster", target: str = "cpu"
) -> CandidateEntry:
    benchmark = tuple(raced(b, 1.0, *measured, verdict).replace(target=target) for b, *measured in rows)
    return CandidateEntry(name=name, parent=None, status="accepted", reason="", benchmark=benchmark)


def axes_of(*candidates: CandidateEntry, required: float | None = None):
    """The axes of the plot as matplotlib has them, laid out."""
    measured = [(c, list(c.benchmark)) for c in candidates]
    with themed(400) as figure:
        forest_plot._fill(figure, measured, "fp32", required)
        figure.draw_without_rendering()
    return figure.axes[0]


def test_nothing_raced_gives_no_plot():
    assert forest_plot.draw((), "fp32") is None
    assert forest_plot.draw((candidate(),), "fp32") is None
    assert forest_plot.draw((candidate((1, 1, 1, 1), verdict="reference"),), "fp32") is None
    assert forest_plot.draw((candidate((1, math.nan, -math.inf, math.inf)),), "fp32") is None


def test_a_narrow_range_is_linear_and_a_wide_one_logarithmic():
    assert axes_of(candidate((1, 1.1, 0.9, 1.3))).get_xscale() == "linear"
    assert axes_of(candidate((1, 2.0, 0.5, 3.7))).get_xscale() == "log"


def test_line_of_the_reference_does_not_strike_names_out():
    axes = axes_of(candidate((1, 2.0, 0.5, 3.7), name="small"))
    [name] = (text for text in axes.texts if text.get_text() == "small")
    assert name.get_bbox_patch().get_facecolor()[3] == 1
    assert name.get_zorder() > max(line.get_zorder() for line in axes.lines if [*line.get_xdata()] == [1.0, 1.0])


def test_plot_names_candidates_series_reference_and_required_speed():
    first = candidate((8, 2.0, 1.5, 2.5), (1, 3.0, 2.9, 3.1), name="small")
    second = candidate((1, 1.2, 0.8, math.inf), name="a$b$ & <c>")
    svg = ET.fromstring(forest_plot.draw((first, second), "fp32", 1.05))
    told = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"small", "a$b$ & <c>", "batch 1", "batch 8", "required: 1.05x", "1x"} <= set(told)
    assert "speed-up over fp32, logarithmic scale" in told
    assert "hollow: not resolved" not in told


def test_unresolved_marks_are_hollow_and_an_interval_without_an_end_is_an_arrow():
    axes = axes_of(candidate((1, 1.2, 0.8, math.inf), verdict="not resolved"))
    marks = {line.get_marker(): line for line in axes.lines if len(line.get_xdata()) and line.get_marker() != "None"}
    assert marks["o"].get_markerfacecolor() == forest_plot.PAPER
    assert marks[">"].get_xdata()[0] == axes.get_xlim()[1]
    assert marks["|"].get_xdata()[0] == 0.8
    resolved = axes_of(candidate((1, 1.2, 1.1, 1.3)))
    assert not any(line.get_markerfacecolor() == forest_plot.PAPER for line in resolved.lines)


@given(st.lists(RATIOS, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_axis_has_few_round_ticks_and_one_of_them_is_the_reference(ratios):
    low, high = forest_plot.limits(ratios)
    with themed(200) as figure:
        axes = figure.subplots()
        forest_plot._scale(axes, low, high, "fp32")
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert 2 <= len(ticks) <= 9
    assert any(tick == pytest.approx(1.0) for tick in ticks)


@given(RATIOS, RATIOS, RATIOS)
@settings(max_examples=30, deadline=None)
def test_any_measurement_lands_on_the_paper(speedup, low, high):
    if not speedup > 0:
        assert forest_plot.draw((candidate((1, speedup, low, high)),), "fp32") is None
        return
    axes = axes_of(candidate((1, speedup, low, high)))
    left, right = axes.get_xlim()
    marks = [x for line in axes.lines for x in line.get_xdata()]
    ends = [x for collection in axes.collections for path in collection.get_paths() for x, _ in path.vertices]
    assert len(marks) >= 4
    assert all(left <= x <= right for x in (*marks, *ends))
