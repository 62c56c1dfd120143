"""What a person sees: both pages on a real run, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from harness import HIDDEN, QUICK, command, prefect_account, sets, sign_in
from playwright.sync_api import Browser, Page

from flows.record.home import Home
from gauntlet.core.run_report import RunReport

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def page(browser: Browser, folder: Path, served: tuple[str, str, RunReport]) -> Page:
    name, secret = prefect_account(Home(folder / ".gauntlet"))
    mlflow: Any = {"username": name, "password": secret, "origin": served[1]}
    page = browser.new_page(viewport={"width": 1500, "height": 1000}, http_credentials=mlflow)
    page.set_default_timeout(60_000)
    return page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[str, str, RunReport]]:
    """A run of the command line with no server of ours about, and `gauntlet up` on its home."""
    done = command(folder, "run", "digits-small-cnn", *sets(*QUICK), **HIDDEN)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Home(folder / ".gauntlet").finished_run()
    assert run is not None
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    ports = [str(free_port()), str(free_port())]
    up = command(folder, "up", "--prefect-port", ports[0], "--mlflow-port", ports[1], **HIDDEN)
    assert up.returncode == 0, up.stdout + up.stderr
    assert all(port in up.stdout for port in ports)
    yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", report
    assert command(folder, "down", **HIDDEN).returncode == 0


def test_prefect_page_shows_the_run_its_gates_and_its_artifacts(
    page: Page, folder: Path, served: tuple[str, str, RunReport]
) -> None:
    prefect, _, report = served
    page.goto(f"{prefect}/runs")
    sign_in(page, Home(folder / ".gauntlet"))
    page.get_by_text("digits-small-cnn").first.wait_for()
    page.get_by_text("digits-small-cnn").first.click()
    page.get_by_text("Completed").first.wait_for()
    expected = 2 * len(report.stages)  # a work node and a gate node each, none lost when the server was stopped
    page.get_by_text(f"{expected} Task runs").wait_for()
    page.get_by_text("Artifacts", exact=True).last.click()
    for key in ("gate-report", "candidates", "mlflow-run"):
        page.get_by_text(key).first.wait_for()
    page.goto(f"{prefect}/artifacts/key/gate-report")
    page.get_by_text("digits-small-cnn").first.wait_for()


def test_mlflow_page_shows_every_accepted_model_with_its_metrics(
    page: Page, served: tuple[str, str, RunReport]
) -> None:
    _, mlflow, report = served
    page.goto(f"{mlflow}/#/experiments/1/models?viewMode=CHART&workflowType=machine_learning")
    accepted = {c.artifact.sha256: c.name for c in reversed(report.candidates) if c.status == "accepted" and c.artifact}
    for name in accepted.values():
        page.get_by_text(f"digits-small-cnn-{name}").first.wait_for()
    page.get_by_text("speedup.b1").first.wait_for()
    page.goto(f"{mlflow}/#/experiments/1/runs?workflowType=machine_learning")
    page.get_by_text(report.run_id[:15]).first.wait_for()


def test_link_in_the_report_opens_the_mlflow_run(page: Page, served: tuple[str, str, RunReport]) -> None:
    _, mlflow, report = served
    path = report.links["MLflow run"].partition("/#")[2]
    page.goto(f"{mlflow}/#{path}")
    page.get_by_text(report.run_id).first.wait_for()
    page.get_by_text("winner").first.wait_for()
    page.get_by_text("quality.top1").first.wait_for()
