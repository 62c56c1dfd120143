"""Pages in a browser: those of others plant no automation, which would run a shell command; ours lead to the login."""

from pathlib import Path
from typing import Any

import pytest
import requests
from harness import prefect_account, sign_in
from playwright.sync_api import Browser
from static_files import served

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from flows.servers.password import CLIENT, basic, password

pytestmark = pytest.mark.browser
SENT = """{method: "POST", mode: "no-cors", body: new Blob(['{"name": "planted"}'])}"""
"""As a browser sends it without asking the server first: without a content type."""


@pytest.fixture(autouse=True)
def no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", CLIENT):
        monkeypatch.delenv(name, raising=False)


def test_link_to_a_run_leads_to_the_login_and_then_to_the_run(browser: Browser, tmp_path: Path) -> None:
    home, page = Home(tmp_path / "home"), browser.new_page()
    with prefect_server(home, 0) as url:
        how: dict[str, Any] = {"auth": prefect_account(home), "timeout": 60}
        flow = requests.post(f"{url}/flows/", json={"name": "gauntlet"}, **how).json()["id"]
        run = requests.post(f"{url}/flow_runs/", json={"flow_id": flow, "name": "my-model"}, **how).json()
        link = f"{url.removesuffix('/api')}/runs/flow-run/{run['id']}"
        page.goto(link)
        sign_in(page, home)
        page.get_by_text("my-model").first.wait_for()
        assert page.url == link
        assert page.get_by_text("Something went wrong").count() == 0
        page.close()


def test_page_of_another_origin_plants_nothing(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>news</p>")
    home = Home(tmp_path / "home")
    with prefect_server(home, 0) as url, served(tmp_path) as elsewhere:
        page = browser.new_page(extra_http_headers=basic(password(home)))  # even of a browser that has the password
        for place, found in ((f"{elsewhere}/page.html", []), (f"{url}/health", ["planted"])):
            page.goto(place)  # one of ours that does not go on to the login
            page.evaluate(f"url => fetch(url, {SENT}).then(a => a.type)", f"{url}/flows/")
            flows = requests.post(f"{url}/flows/filter", json={}, auth=prefect_account(home), timeout=60).json()
            assert [one["name"] for one in flows] == found
        page.close()
