"""A page that the user visits cannot plant an automation, which would run a shell command, in a server of this home."""

from pathlib import Path

import pytest
import requests
from harness import prefect_account
from playwright.sync_api import Browser
from static_files import served

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from flows.servers.password import CLIENT, basic, password

pytestmark = pytest.mark.browser
SENT = """{method: "POST", mode: "no-cors", body: new Blob(['{"name": "planted"}'])}"""
"""As a browser sends it without asking the server first: without a content type."""


def test_page_of_another_origin_plants_nothing(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", CLIENT):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "page.html").write_text("<p>news</p>")
    home = Home(tmp_path / "home")
    with prefect_server(home, 0) as url, served(tmp_path) as elsewhere:
        page = browser.new_page(extra_http_headers=basic(password(home)))  # even of a browser that has the password
        for place, found in ((f"{elsewhere}/page.html", []), (url.removesuffix("/api"), ["planted"])):
            page.goto(place, wait_until="commit")
            page.evaluate(f"url => fetch(url, {SENT}).then(a => a.type)", f"{url}/flows/")
            flows = requests.post(f"{url}/flows/filter", json={}, auth=prefect_account(home), timeout=60).json()
            assert [one["name"] for one in flows] == found
        page.close()
