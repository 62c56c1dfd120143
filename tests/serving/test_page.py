"""The page to try a model, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from served_bundles import brightness_bundle
from server_process import ServerProcess, serving
from small_images import DROP

pytestmark = pytest.mark.browser

TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "token").write_text(TOKEN)
    bundle = brightness_bundle(folder / "b", latencies=[(1, 1.0)])
    other = brightness_bundle(folder / "other", bias=50.0, name="zzz-middle")
    with serving(folder, bundle, other, "--token-file", folder / "token") as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith((server.url, "blob:")) or problems.append(request.url))
    page.goto(server.url)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_label("Model")).to_have_value("brightness")
    yield page
    page.close()
    assert not problems


def test_dropped_image_is_shown_with_its_prediction(page: Page, white_png: bytes, black_png: bytes) -> None:
    page.evaluate(DROP, [list(white_png), "white.png"])
    expect(page.locator(".best")).to_have_text("bright")
    assert page.locator("#image").evaluate("image => image.naturalWidth") == 12
    bars = page.locator(".track rect").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert bars == sorted(bars, reverse=True)
    assert bars[0] > 100 > bars[-1]
    page.evaluate(DROP, [list(black_png), "black.png"])
    expect(page.locator(".best")).to_have_text("dark")


def test_chosen_file_is_predicted_and_what_is_no_image_is_refused(page: Page, tmp_path: Path, white_png: bytes) -> None:
    (tmp_path / "white.png").write_bytes(white_png)
    (tmp_path / "broken.png").write_text("no image")
    page.locator("#file").set_input_files(tmp_path / "broken.png")
    expect(page.locator(".error")).to_contain_text("not an image")
    page.locator("#file").set_input_files(tmp_path / "white.png")
    expect(page.locator(".best")).to_have_text("bright")


def test_image_is_predicted_by_the_model_that_is_chosen_after_it(page: Page, white_png: bytes) -> None:
    page.evaluate(DROP, [list(white_png), "white.png"])
    expect(page.locator(".best")).to_have_text("bright")
    page.get_by_label("Model").select_option("zzz-middle")
    expect(page.locator(".best")).not_to_have_text("bright")


def test_image_is_chosen_with_the_keyboard_alone(page: Page) -> None:
    with page.expect_file_chooser():  # Chromium needs some calls to know that it is expected
        page.get_by_label("Model").focus()
        idle = page.locator("#drop").evaluate("drop => getComputedStyle(drop).borderColor")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")  # past the token
        assert page.locator("#drop").evaluate("drop => getComputedStyle(drop).borderColor") != idle
        page.keyboard.press("Space")


def test_page_says_that_the_token_is_missing(browser: Browser, server: ServerProcess) -> None:
    page = browser.new_page()
    page.goto(server.url)
    expect(page.locator(".error")).to_contain_text("Authorization: Bearer TOKEN")
    expect(page.get_by_label("Token")).to_be_visible()
    page.close()
