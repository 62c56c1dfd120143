"""The steps of normalization in the page, one line each."""

from gauntlet.core.report import Report
from gauntlet.core.run_report import StageEntry
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown
from tasks.normalize.config import NormalizeFacts, StepFacts


def normalized(*steps: StepFacts, **more: object) -> StageEntry:
    known = {"opset_before": 9, "opset_after": 17, "ir_version_before": 3, "ir_version_after": 8}
    known |= {"nodes_before": 40, "nodes_after": 38, "size_bytes": 1, "precision": "float32", "control_flow": {}}
    facts = NormalizeFacts.model_validate({"changed": True, "steps": steps, **known, **more})
    return StageEntry.of(Report(stage="normalize", facts=facts))


def test_page_tells_what_became_of_each_step(passed) -> None:
    raised = StepFacts(step="opset", outcome="applied", change="opset 9 to 17", max_abs_error=2e-7)
    undone = StepFacts(step="batch", outcome="undone", reason="'y' changes by 12 <b>")
    page = render_html(passed.replace(stages=(*passed.stages, normalized(raised, undone))))
    assert "Normalization: opset 9 → 17, 40 → 38 nodes" in page
    assert "opset 9 to 17" in page
    assert "changes by 12 &lt;b&gt;" in page


def test_page_says_when_the_file_is_used_as_it_is_and_what_it_was_recognized_as(passed) -> None:
    step = StepFacts(step="opset", outcome="not needed")
    more = {"changed": False, "precision": "quantized", "precision_reason": "it has 3 QuantizeLinear nodes"}
    page = render_html(passed.replace(stages=(*passed.stages, normalized(step, **more))))
    assert "Normalization: the file is used as it is" in page
    assert "Recognized as quantized: it has 3 QuantizeLinear nodes" in page


def test_markdown_has_the_steps_that_had_something_to_do(passed) -> None:
    raised = StepFacts(step="opset", outcome="applied", change="opset 9 to 17", max_abs_error=2e-7)
    undone = StepFacts(step="batch", outcome="undone", change="made it dynamic", reason="'y' changes by 12 <b>")
    unneeded = StepFacts(step="names", outcome="not needed")
    text = render_markdown(passed.replace(stages=(*passed.stages, normalized(raised, undone, unneeded))))
    assert "| opset | applied | opset 9 to 17 | – |" in text
    assert "| batch | undone | made it dynamic | 'y' changes by 12 &lt;b&gt; |" in text
    assert "names" not in text
    nothing = passed.replace(stages=(*passed.stages, normalized(unneeded)))
    assert "## Normalization" not in render_markdown(nothing)
