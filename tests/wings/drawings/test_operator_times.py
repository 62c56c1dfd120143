"""The chart of time by operator type: the slowest first, and nothing at all where nothing was profiled."""

import re

from recorded_facts import with_facts

from gauntlet.reporting.html_report import render_html
from tasks.benchmark.candidate_profile import CandidateProfile
from tasks.benchmark.facts import BenchmarkFacts
from wings.drawings import operator_times


def profile(candidate: str, **operators: float) -> CandidateProfile:
    total = sum(operators.values())
    times = [{"operator": name, "nodes": 2, "ms": ms, "share": ms / total} for name, ms in operators.items()]
    slowest = [{"node": "/conv1/Conv", "operator": "Conv", "provider": "CPU", "ms": 1.5, "share": 0.4}]
    shares = {"layout_share": 0.1, "qdq_share": 0.02, "non_kernel_share": 0.05}
    told = {"calls": 20, "call_ms": total, "operators": times, "slowest": slowest, **shares}
    known = {"candidate": candidate, "target": "ort-cpu", "batch": 1, "unprofiled_ms": 1.0, "profile": told}
    return CandidateProfile.model_validate(known)


def test_operators_come_by_the_longest_time_in_any_profile() -> None:
    known = [profile("fp32", Conv=4.0, Add=1.0, Flatten=0.0), profile("int8", QLinearConv=1.5, Add=0.5)]
    found = operator_times.slowest(known)
    assert list(found) == ["Conv", "QLinearConv", "Add"]
    assert [(number, one.ms) for number, one in found["Add"]] == [(0, 1.0), (1, 0.5)]


def test_chart_stays_small_when_there_are_many_operators() -> None:
    many = profile("fp32", **{f"Op{number}": 1.0 + number for number in range(40)})
    assert list(operator_times.slowest([many])) == [
        f"Op{number}" for number in range(39, 39 - operator_times.MAX_OPERATORS, -1)
    ]


def test_nothing_is_drawn_when_nothing_was_profiled() -> None:
    missing = profile("fp32", Conv=1.0).replace(profile=None)
    assert BenchmarkFacts.model_construct(profiles=(missing,)).section() is None


def test_page_shows_where_the_time_goes_when_the_race_profiled(passed) -> None:
    assert 'id="kernels"' not in render_html(passed)
    profiles = (profile("fp32", Conv=4.0), profile("<b>int8", QLinearConv=1.0))
    stages = tuple(with_facts(s, profiles=profiles) if s.stage == "benchmark" else s for s in passed.stages)
    page = render_html(passed.replace(stages=stages))
    assert 'id="kernels"' in page
    assert "Conv: fp32, batch 1: 4.00 ms, 100.0 %, 2 nodes" in page
    text = " ".join(re.sub(r"<[^>]+>", " ", page[page.index('id="kernels"') :]).split())
    assert "fp32: slowest nodes; layout 10.0 %, Q/DQ 2.0 %, outside of kernels 5.0 %" in text
    assert "/conv1/Conv Conv CPU 1.50 ms 40.0 %" in text
    assert "<b>int8" not in page


def test_page_says_who_was_faster_when_a_candidate_left_the_race_early(passed) -> None:
    first, *others = passed.candidates
    loser = others[-1]
    row = passed.candidates[1].benchmark[0].replace(verdict="slower", batch=8)
    slower = row.replace(stopped_after_round=3, stopped_for="static-u8s8", stopped_as="slower")
    deciding = row.replace(batch=1, verdict="not resolved", more_rounds=17)
    page = render_html(passed.replace(candidates=(first, *others[:-1], loser.replace(benchmark=(deciding, slower)))))
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Batch 8 on ort-cpu: dropped after round 3, slower than static-u8s8." in text
    assert "slower, dropped after round 3 (slower than static-u8s8), median" in page
