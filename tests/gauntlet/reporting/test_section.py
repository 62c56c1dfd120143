"""The tables that a wing or a package adds to every view of a report."""

import io

import pytest
from rich.console import Console

from flows.cli.report_tables import print_sections
from gauntlet.reporting import section
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown
from gauntlet.reporting.section import Section, SectionTable


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
