"""A figure in a page: its own ids, the page's colours, text that is text, and the same bytes every time."""

import re

from gauntlet.reporting.drawing import INK, MARKERS, PAPER, SERIES, THEME, embed, short, themed


def drawing(name: str = "one", label: str = "fp32") -> str:
    with themed(120) as figure:
        axes = figure.subplots()
        axes.plot([1, 2], [3, 4], MARKERS[0], color=SERIES[0], markerfacecolor=PAPER, label=label)
        axes.axvline(1.5, color=INK)
        figure.legend()
        return str(embed(figure, name, 'two "points"'))


def test_figure_is_the_same_every_time() -> None:
    assert drawing() == drawing()


def test_every_colour_is_one_of_the_page() -> None:
    svg = drawing()
    assert "#" not in re.sub(r'href="#[^"]*"', "", svg)
    used = set(re.findall(r"var\(--([a-z0-9]+)\)", svg))
    assert {"ink", "c0", "paper", "muted"} <= used <= set(THEME)


def test_ids_and_links_begin_with_the_figures_name() -> None:
    svg = drawing("two")
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(ids) > 5
    assert all(name.startswith("two-") for name in (*ids, *re.findall(r'href="#([^"]*)"', svg)))
    assert {*re.findall(r'href="#([^"]*)"', svg)} <= {*ids}


def test_text_stays_text_in_the_pages_font_and_nothing_applies_to_the_whole_page() -> None:
    svg = drawing(label="a_{b} $x$ <c> \u65e5\u672c")
    assert ">a_{b} $x$ &lt;c&gt; \u65e5\u672c</text>" in svg
    assert "font-family" not in svg
    assert "<style" not in svg
    assert "url(" not in svg


def test_figure_says_in_words_what_it_shows() -> None:
    assert 'role="img" aria-label="two &quot;points&quot;"' in drawing()


def test_long_names_are_cut_and_lines_joined() -> None:
    assert short("a\nb\x00") == "a b\ufffd"
    assert short("x" * 50, 10) == "xxxxxxxxx…"
