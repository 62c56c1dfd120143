"""The graph passes of a chain in the page, one line each."""

from gauntlet.core.report import Report
from gauntlet.core.run_report import StageEntry
from gauntlet.reporting.html_report import render_html
from tasks.optimize import OptimizeFacts
from tasks.optimize.verified_pass import PassFacts


def chain(*passes: PassFacts) -> StageEntry:
    facts = OptimizeFacts(nodes_before=15, nodes_after=9, size_bytes=1, custom_operators={}, passes=passes)
    return StageEntry.of(Report(stage="optimize", candidate="passes", facts=facts))


def test_page_tells_what_became_of_each_pass(passed) -> None:
    taken = PassFacts(
        name="onnxsim", outcome="accepted", nodes_before=15, nodes_after=9, speed=1.2, speed_low=1.1, speed_high=1.3
    )
    broken = PassFacts(name="mine", outcome="rejected", broke="wrong", reason="'a<b' changes by 12", nodes_before=9)
    page = render_html(passed.replace(stages=(*passed.stages, chain(taken, broken))))
    assert "Graph passes of passes (2)" in page
    assert "15 → 9" in page
    assert "1.20x [1.10, 1.30]" in page
    assert "&#39;a&lt;b&#39; changes by 12" in page


def test_page_has_no_table_of_passes_when_there_is_no_chain(passed) -> None:
    assert "Graph passes of" not in render_html(passed.replace(stages=(*passed.stages, chain())))
