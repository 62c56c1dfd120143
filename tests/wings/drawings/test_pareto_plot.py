import math
import xml.etree.ElementTree as ET

import pytest

from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport
from gauntlet.reporting.html_report import render_html
from wings.drawings import pareto_plot


def candidate(
    name: str, latency_ms: float, size_mb: float, accuracy: float | None = None, sqnr_db: float | None = None
) -> CandidateEntry:
    same = {"target": "t", "speedup": 1, "speedup_low": 1, "speedup_high": 1, "verdict": "faster"}
    rows = tuple(BenchmarkRow(batch=b, median_ms=ms, **same) for b, ms in ((1, latency_ms), (8, 1 / latency_ms)))
    known = {"accuracy": accuracy, "sqnr_db": sqnr_db, "size_bytes": int(size_mb * 1e6), "benchmark": rows}
    return CandidateEntry(name=name, parent=None, status="accepted", reason="", **known)


def texts(svg: str) -> set[str | None]:
    return {element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


@pytest.fixture
def run(passed: RunReport):
    """Return a run with these candidates."""

    def made(*candidates: CandidateEntry, batch: int = 1) -> RunReport:
        return passed.replace(candidates=candidates, winner=None, stages=(), config={"select": {"batch": batch}})

    return made


def test_front_has_those_that_no_other_beats_in_all_three(run):
    points = (
        candidate("fp32", 4.0, 44, 0.99),
        candidate("int8", 1.0, 11, 0.98),
        candidate("worse", 1.2, 12, 0.97),
        candidate("as good and larger", 1.0, 12, 0.98),
        candidate("exact", 2.0, 44, 0.99),
    )
    found = pareto_plot.chart(run(*points))
    assert [point.name for point in found.front] == ["int8", "exact"]
    assert [point.latency_ms for point in found.points] == [1.0, 1.0, 1.2, 2.0, 4.0]


def test_quality_is_the_noise_where_accuracies_are_the_same_or_unknown(run):
    for accuracy in (0.99, None):
        report = run(candidate("fp32", 4, 44, accuracy), candidate("int8", 1, 11, accuracy, 38.0))
        found = pareto_plot.chart(report)
        assert (found.metric, [point.quality for point in found.points]) == (None, [38.0, math.inf])
    drawn = pareto_plot.draw(report)
    assert drawn is not None
    assert {"SQNR, dB; at the top: no noise", "fp32", "int8"} <= texts(drawn)


def test_rounding_of_float32_is_no_noise(run):
    found = pareto_plot.chart(run(candidate("fp32", 4, 44), candidate("passes", 3.9, 44, sqnr_db=136.0)))
    assert [point.quality for point in found.points] == [math.inf, math.inf]
    assert [point.name for point in found.front] == ["passes"]


def test_labels_of_the_axis_differ_however_close_accuracies_are(run):
    drawn = pareto_plot.draw(run(candidate("fp32", 4, 44, 0.9917), candidate("int8", 1, 11, 0.9889)))
    shares = [element.text for element in ET.fromstring(drawn).iter() if (element.text or "").endswith("%")]
    assert len(shares) == len(set(shares)) > 2


def test_axis_has_no_numbers_where_no_candidate_has_noise(run):
    drawn = pareto_plot.draw(run(candidate("fp32", 40, 44), candidate("passes", 39, 44, sqnr_db=136.0)))
    assert {text for text in texts(drawn) if text and text[0].isdigit() and "." in text} == set()


def test_point_is_that_of_the_batch_size_that_decided(run):
    report = run(candidate("fp32", 4.0, 44, 0.99), candidate("int8", 2.0, 11, 0.98), batch=8)
    found = pareto_plot.chart(report)
    assert [(point.name, point.latency_ms) for point in found.points] == [("fp32", 0.25), ("int8", 0.5)]


@pytest.mark.parametrize("names", [(), ("fp32",)])
def test_nothing_is_drawn_of_fewer_than_two_candidates(run, names: tuple[str, ...]):
    assert pareto_plot.draw(run(*(candidate(name, 1, 1, 0.9) for name in names))) is None


def test_page_shows_the_chart_and_marks_the_winner(passed: RunReport):
    page = render_html(passed)
    assert 'aria-label="Accuracy, latency and size. ' in page
    assert "static-u8s8 (winner)" in page
    assert "hollow: dominated" in page


def test_many_candidates_are_drawn_with_as_many_names_as_there_are_colors(run):
    many = tuple(candidate(f"c{i}", 1 + i, 20 - i, 0.9 + i / 1000) for i in range(12))
    drawn = pareto_plot.draw(run(*many))
    assert drawn is not None
    assert {f"c{i}" for i in range(6)} <= texts(drawn)
    assert "c6" not in texts(drawn)
    assert "6 more" in texts(drawn)
    # In either chart, and in the legend: no seventh point looks like one of the six.
    assert [drawn.count(f"fill: var(--c{number});") for number in range(6)] == [3] * 6


def test_the_winners_latency_is_of_the_same_race_as_the_others(passed: RunReport) -> None:
    rows = {c.name: c.benchmark for c in passed.candidates}[passed.winner]
    own = {"benchmark": tuple(row.replace(median_ms=99.0) for row in rows), "first_race": rows}
    candidates = tuple(c.replace(**own) if c.name == passed.winner else c for c in passed.candidates)
    assert pareto_plot.chart(passed.replace(candidates=candidates)) == pareto_plot.chart(passed)
