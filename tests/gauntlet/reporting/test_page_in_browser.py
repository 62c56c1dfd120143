"""The page as a browser shows it."""

import pytest

from gauntlet.reporting.html_report import render_html

pytestmark = pytest.mark.browser

LONG = "static-u8s8-percentile99.99-reduce-range"
REASON = (
    "not proven faster: 1.04x [0.97, 1.06] at batch 1; because turning inputs into integers and outputs back takes "
    "11 % of the time; its convolutions and products take 1.40x the time of the float ones"
)
READABLE_PX = 600
"""About 80 characters."""


@pytest.fixture
def crowded(passed):
    """What `quantize: auto` makes of a run: many candidates with long names and long reasons, at four batch sizes."""
    known = next(c for c in passed.candidates if c.name == "static-u8s8")
    rows = tuple(row.replace(batch=batch) for batch in (1, 8, 32, 128) for row in known.benchmark[:1])
    more = tuple(
        known.replace(name=f"{LONG}-{n}", parent=LONG, status="rejected", reason=REASON, benchmark=rows)
        for n in range(12)
    )
    return passed.replace(candidates=(*passed.candidates, *more))


OVERFLOWING = """
[...document.querySelectorAll('main, main *')]
  .filter(e => e.getBoundingClientRect().right > innerWidth || (e.clientWidth && e.scrollWidth > e.clientWidth + 1))
  .map(e => e.outerHTML.slice(0, 200))
"""
WIDTHS = "[...document.querySelectorAll('.words')].map(e => e.getBoundingClientRect().width)"


@pytest.mark.parametrize("run", ["passed", "crowded", "stopped_at_numerics"])
def test_at_1280_pixels_nothing_overflows_and_reasons_have_a_readable_width(browser, run, request):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(render_html(request.getfixturevalue(run)))
    for fold in page.locator("summary").all():
        fold.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.evaluate(OVERFLOWING) == []
    widths = page.evaluate(WIDTHS)
    assert len(widths) >= 3
    assert min(widths) >= READABLE_PX
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_have_the_colours_of_the_theme(browser, passed, scheme):
    page = browser.new_page(color_scheme=scheme)
    page.set_content(render_html(passed))
    ink = page.evaluate("getComputedStyle(document.body).color")
    told = page.evaluate(
        "[...document.querySelectorAll('svg.drawing text')].map(e => [e.textContent, getComputedStyle(e).fill])"
    )
    names = [fill for text, fill in told if text == "static-u8s8"]
    assert names == [ink]
    assert not any(fill == "rgb(0, 0, 0)" for _, fill in told)
    page.close()


LABELS_PX = """[...document.querySelectorAll(".drawing text")].map(
    label => [parseFloat(getComputedStyle(label).fontSize), label.getScreenCTM()]
).map(([size, scale]) => size * Math.hypot(scale.a, scale.b))"""
"""On the screen: charts are scaled, and scroll where they are wider than the page."""


@pytest.mark.parametrize("width_px", [1200, 390])
@pytest.mark.parametrize("run", ["passed", "stopped_at_numerics", "stopped_at_data"])
def test_the_page_is_quiet_alone_and_fits(browser, run, width_px, request, tmp_path):
    report = request.getfixturevalue(run)
    file = tmp_path / "report.html"
    file.write_text(render_html(report.replace(name="a" * 120)), encoding="utf-8")
    page = browser.new_page(viewport={"width": width_px, "height": 900})
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda sent: asked.append(sent.url))
    page.goto(file.as_uri())
    for fold in page.locator("summary").all():
        fold.click()
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert page.evaluate("document.body.scrollWidth") <= width_px
    assert page.evaluate("document.documentElement.scrollWidth") <= width_px
    assert min(page.evaluate(LABELS_PX), default=11) >= 11
    page.close()
    assert told == []
    assert asked == [file.as_uri()]


def test_light_dark_and_print_have_their_own_paper(browser, passed):
    page = browser.new_page(color_scheme="dark")
    page.set_content(render_html(passed))
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(20, 23, 27)"
    page.emulate_media(media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.close()
