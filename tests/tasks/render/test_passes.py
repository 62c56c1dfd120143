"""The graph passes of a chain in the page, one line each."""

from tasks.optimize import OptimizeFacts
from tasks.optimize.transaction import PassFacts
from tasks.render.facts import chains
from tasks.render.html import render_html
from tasks.run_report import StageEntry


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
    odd = chain().replace(facts={"passes": [{"name": 7}]})
    assert chains(passed.replace(stages=(*passed.stages, chain(), odd))) == {}
    assert "Graph passes of" not in render_html(passed)
