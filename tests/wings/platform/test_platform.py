"""`gauntlet up` as a person uses it: start it, click Run, look at the result, lose a part, stop it."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from free_ports import free_port
from harness import HIDDEN, command, prefect_account, quick_config, sign_in, until
from playwright.sync_api import Browser

from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from wings.platform.local_platform import WORKERS, platform_wings
from wings.platform.supervisor import PartState

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.timeout(900)]


def gauntlet(folder: Path, *words: str) -> str:
    done = command(folder, *words, **HIDDEN)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def parts(folder: Path) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in json.loads(command(folder, "status", "--json", **HIDDEN).stdout)["parts"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("platform")
    ports = ("--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
    shown = gauntlet(folder, "up", *ports)
    assert "Prefect  http://127.0.0.1:" in shown
    assert "MLflow   http://127.0.0.1:" in shown
    yield folder
    assert "Nothing runs any more" in gauntlet(folder, "down")
    assert command(folder, "status", **HIDDEN).returncode == 1


def configure(api: str, config: dict[str, Any], account: tuple[str, str]) -> str:
    """Give the deployment small settings, as a person would in its form; return its id."""
    import requests

    found = requests.get(f"{api}/deployments/name/gauntlet/on-demand", auth=account, timeout=60).json()
    body = {"parameters": {"config": config}}
    requests.patch(f"{api}/deployments/{found['id']}", json=body, auth=account, timeout=60).raise_for_status()
    return str(found["id"])


def test_a_click_on_run_ends_in_a_winner_that_mlflow_shows(browser: Browser, folder: Path) -> None:
    servers = parts(folder)
    prefect, mlflow = servers["prefect"]["address"], servers["mlflow"]["address"]
    home = Home(folder / ".gauntlet")
    deployment = configure(f"{prefect}/api", quick_config().model_dump(mode="json"), prefect_account(home))
    name, secret = prefect_account(home)
    account = {"username": name, "password": secret, "origin": mlflow}  # as a person enters it when the browser asks
    page = browser.new_page(viewport={"width": 1280, "height": 900}, http_credentials=account)
    page.set_default_timeout(120_000)
    page.goto(f"{prefect}/deployments/deployment/{deployment}")
    sign_in(page, home)
    page.get_by_role("button", name="Run", exact=True).first.click()
    page.get_by_text("Quick run").click()
    page.get_by_text("Run Deployment").wait_for()  # the form, with the deployment's settings
    page.get_by_role("button", name="Run", exact=True).last.click()
    until(home.finished_run, 400)
    run = home.finished_run()
    assert run is not None
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert report.verdict == "passed", report.reason
    link = urlsplit(report.links["MLflow run"])
    assert f"{link.scheme}://{link.netloc}" == mlflow  # the link leads to the page that is up
    page.goto(report.links["MLflow run"])
    page.get_by_text(report.run_id).first.wait_for()
    page.goto(f"{prefect}/runs")
    page.get_by_text("Completed").first.wait_for()
    page.close()


@pytest.mark.parametrize(
    "name", ["prefect", "mlflow", *WORKERS, *chain(*(wing.WORKERS for wing in platform_wings().values()))]
)
def test_part_that_is_killed_is_restarted_at_its_address(folder: Path, name: str) -> None:
    before = parts(folder)[name]
    psutil.Process(before["pid"]).kill()
    until(lambda: (now := parts(folder)[name])["ready"] and now["restarts"] == before["restarts"] + 1)
    after = parts(folder)[name]
    assert (after["address"], after["pid"] != before["pid"]) == (before["address"], True)


def test_supervisor_that_is_killed_is_replaced_and_leaves_no_part_behind(folder: Path) -> None:
    state = json.loads(command(folder, "status", "--json", **HIDDEN).stdout)
    psutil.Process(state["supervisor"]["pid"]).kill()
    until(lambda: not any(PartState.model_validate(part).process for part in state["parts"]))
    assert command(folder, "status", **HIDDEN).returncode == 1
    gauntlet(folder, "up")
    assert all(part["ready"] for part in parts(folder).values())


def test_up_beside_a_named_server_is_refused(tmp_path: Path) -> None:
    done = command(tmp_path, "up", PREFECT_API_URL="http://127.0.0.1:1/api")
    assert done.returncode == 2
    assert "unset PREFECT_API_URL" in done.stderr
    assert list(tmp_path.iterdir()) == []
