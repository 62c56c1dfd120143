"""What a person sees: the pages of Prefect, MLflow and serving, in headless Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from servers import MODEL, Servers

PATIENCE_MS = 120_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium: the system's, or else Playwright's own."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def page_of(browser: Browser, account: tuple[str, str] | None = None) -> Iterator[Page]:
    """A window of its own, without the passwords that others have entered; `account` is for servers that ask."""
    known = {"username": account[0], "password": account[1]} if account else None
    context = browser.new_context(viewport={"width": 1280, "height": 900}, http_credentials=known)
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def log_in(page: Page, servers: Servers) -> None:
    """Open Prefect's page, which asks for its password, and enter it."""
    page.goto(servers.prefect)
    page.locator("input[type=password]").fill(servers.password)
    page.get_by_role("button", name="Login").click()
    page.get_by_text("Flow Runs").first.wait_for()


def click_run(browser: Browser, servers: Servers) -> str:
    """Start a run of the deployment by a click on its page; return the run's id."""
    before = set(servers.flow_runs())
    with page_of(browser) as page:
        log_in(page, servers)
        page.goto(f"{servers.prefect}/deployments/deployment/{servers.deployment}")
        page.get_by_role("button", name="Run", exact=True).first.click()
        page.get_by_text("Quick run").click()
        page.get_by_text("Run Deployment").wait_for()  # the form, with the deployment's settings
        page.get_by_role("button", name="Run", exact=True).last.click()
        while not (started := set(servers.flow_runs()) - before):
            page.wait_for_timeout(1000)
    return started.pop()


def look_at_records(browser: Browser, servers: Servers, run: str) -> None:
    """Open a finished run in Prefect and the models of the experiment in MLflow."""
    with page_of(browser) as page:
        log_in(page, servers)
        page.goto(f"{servers.prefect}/runs/flow-run/{run}")
        page.get_by_text("Completed").first.wait_for()
        page.get_by_text("Task runs").first.wait_for()
    with page_of(browser, servers.mlflow_account) as page:
        page.goto(f"{servers.mlflow}/#/models/{MODEL}?workspace=default")
        page.get_by_text("champion").first.wait_for()


def predict_in_page(browser: Browser, servers: Servers, image: Path) -> str:
    """Give an image to the page of serving; return the label that it shows."""
    with page_of(browser) as page:
        page.goto(servers.serving)
        page.get_by_label("Token").fill(servers.token)
        page.get_by_label("Token").press("Enter")
        page.locator("#file").set_input_files(image)
        page.locator(".best").wait_for()
        return page.locator(".best").inner_text()
