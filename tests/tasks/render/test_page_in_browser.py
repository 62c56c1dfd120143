"""The page as a browser shows it."""

import os
import shutil

import pytest

from tasks.render.html import render_html

pytestmark = pytest.mark.browser
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync")  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        message = "chromium is not on the PATH"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(SWITCHES))
        yield started
        started.close()


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
