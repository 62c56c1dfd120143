"""The serve gate in the page."""

import math

from served_facts import facts_of

from gauntlet.core.run_report import StageEntry
from gauntlet.reporting.html_report import render_html
from tasks.serve.config import ServeFacts


def served(facts: ServeFacts) -> StageEntry:
    values = facts.model_dump(mode="json")
    empty = {"cached": False, "seconds": 1.0, "peak_rss_bytes": 0, "checks": (), "artifacts": {}}
    return StageEntry(stage="serve", facts=values, **empty)


def test_page_says_how_the_objective_was_kept_and_what_the_service_adds(passed) -> None:
    page = render_html(passed.replace(stages=(*passed.stages, served(facts_of(8, 9, 9.5)))))
    text = " ".join(page.split())
    assert "<strong>Proven within</strong> the objective of p99 ≤ 10.0 ms at 5 requests/s" in text
    assert "p99 9.00 ms, 95 % interval 8.00 ms to 9.50 ms" in text
    assert "900 requests, 2 refused, 1 failed" in text
    assert 'added by the service</th><td class="number">0.250 ms</td><td class="number">1.00 ms</td>' in text


def test_page_shows_an_interval_without_an_end(passed) -> None:
    page = render_html(passed.replace(stages=(*passed.stages, served(facts_of(8, math.inf, math.inf)))))
    assert "<strong>Not resolved</strong>" in page
    assert "8.00 ms to ∞ ms" in page


def test_run_without_an_objective_has_no_such_section(passed) -> None:
    assert 'id="serving"' not in render_html(passed)
