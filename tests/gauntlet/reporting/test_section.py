"""The tables of a report that wings, normalization and a chain of passes add to its views."""

import io

import pytest
from rich.console import Console

from flows.cli.report_tables import print_sections
from gauntlet.core.report import Report
from gauntlet.core.run_report import StageEntry
from gauntlet.reporting import section
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown
from gauntlet.reporting.section import Section, SectionTable
from tasks.normalize.config import NormalizeFacts, StepFacts
from tasks.optimize import OptimizeFacts
from tasks.optimize.verified_pass import PassFacts

pytestmark = pytest.mark.slow


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SectionTable("Boxes, table", ("Box", "Weight", "Color"), "lrl", (("<small>", "2 kg", "red"),), ("Color",))
    empty = SectionTable("Lids", ("Lid",), "l", ())
    made = Section("Boxes & lids", "As weighed.", (table, empty), (("lids", "are *missing*"),))
    monkeypatch.setattr(section, "kinds", lambda _: {"boxes": lambda _: made, "nothing": lambda _: None})


def test_section_is_on_the_page_and_in_markdown_with_its_text_escaped(brought: None, passed) -> None:
    page, text = render_html(passed), render_markdown(passed)
    assert '<h2 id="boxes">Boxes &amp; lids</h2>' in page
    assert '<th scope="row">&lt;small&gt;</th><td class="number">2 kg</td><td>red</td>' in page
    assert "<strong>lids</strong> are *missing*" in page
    assert "| Box | Weight | Color |\n| --- | ---: | --- |\n| &lt;small&gt; | 2 kg | red |" in text
    assert "lids are \\*missing\\*" in text
    assert "| Lid |" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_narrow_terminal_leaves_out_the_columns_that_it_may(brought: None, passed, width: int) -> None:
    output = io.StringIO()
    print_sections(Console(file=output, width=width), passed)
    assert "<small>" in output.getvalue()
    assert ("red" in output.getvalue()) == (width == 120)
    assert "lid" not in output.getvalue()


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
