"""The graph passes of a chain in the page, one line each."""

from gauntlet.core.run_report import StageEntry
from gauntlet.reporting.html_report import render_html
from tasks.optimize import OptimizeFacts
from tasks.optimize.verified_pass import PassFacts


def chain(*passes: PassFacts) -> StageEntry:
    facts = OptimizeFacts(nodes_before=15, nodes_after=9, size_bytes=1, custom_operators={}, passes=passes)
    return StageEntry(
        stage="optimize",
        candidate="passes",
        cached=False,
        seconds=3.0,
        peak_rss_bytes=0,
        facts=facts.model_dump(mode="json"),
        checks=(),
        artifacts={},
    )


def test_page_tells_what_became_of_each_pass(passed) -> None:
    taken = PassFacts(
        name="onnxsim", outcome="accepted", nodes_before=15, nodes_after=9, speed=1.2, speed_low=1.1, speed_high=1.3
    )
    broken = PassFacts(
        name="mine",
        outcome="rejected",
        broke="wrong",
        reason="'y' changes by 12",
        nodes_before=9,
        nodes=("Conv 'a<b'",),
    )
    page = render_html(passed.replace(stages=(*passed.stages, chain(taken, broken))))
    assert "Graph passes of passes (2)" in page
    assert "15 → 9" in page
    assert "1.20x [1.10, 1.30]" in page
    assert "at Conv &#39;a&lt;b&#39;" in page


def test_page_has_no_table_of_passes_when_there_is_no_chain(passed) -> None:
    assert "Graph passes of" not in render_html(passed.replace(stages=(*passed.stages, chain())))


def test_page_says_so_when_another_version_wrote_the_passes(passed) -> None:
    odd = chain().replace(facts={"passes": [{"name": 7}]})
    page = render_html(passed.replace(stages=(*passed.stages, odd)))
    assert "Graph passes of" not in page
    assert "The facts of stage <code>optimize</code> of passes were" in page
