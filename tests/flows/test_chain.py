"""Why the losers of a run lost, in what it leaves behind."""

from flows.cli.console import reasons as printed_reasons
from gauntlet.core.run_report import CAUSE_SEPARATOR, RunReport
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown


def test_run_says_why_a_candidate_is_not_faster(finished: RunReport) -> None:
    reasons = {c.name: c.reason for c in finished.candidates}
    assert "ConvInteger" in reasons["dynamic-s8"].partition(CAUSE_SEPARATOR)[2]
    assert "ConvInteger" in render_markdown(finished)
    assert "ConvInteger" in render_html(finished)
    assert any("ConvInteger" in reason for reason in printed_reasons(finished))
