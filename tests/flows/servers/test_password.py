"""Only who knows the password of a home can call its Prefect server; the home's processes all use the same."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import requests
from harness import command, prefect_account

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from flows.servers.password import CLIENT, SERVER, authorization, password, password_file, password_hint
from gauntlet.core.errors import ConfigError

FLOW = """
import sys
from pathlib import Path
from flows.record.home import Home
from flows.servers.local_servers import prefect_server
with prefect_server(Home(Path(sys.argv[1]))) as url:
    from prefect import flow
    print(url, flow(lambda: 3, name="counted")())
"""


def files_with(text: str, folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


@pytest.fixture(scope="module")
def session_password(prefect_server: str) -> str:
    return os.environ[CLIENT]


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", CLIENT, SERVER):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_processes_that_start_at_once_get_the_same_password(tmp_path: Path) -> None:
    program = "import secrets, sys, time; from pathlib import Path; from flows.record.home import Home; "
    program += "from flows.servers.password import password; make = secrets.token_urlsafe; "
    program += "secrets.token_urlsafe = lambda size: time.sleep(float(sys.argv[2])) or make(size); "
    program += "print(password(Home(Path(sys.argv[1]))))"
    words = [sys.executable, "-c", program, tmp_path]
    started = [subprocess.Popen([*words, str(seconds)], stdout=subprocess.PIPE, text=True) for seconds in (2, 3, 4)]
    [one] = {process.communicate()[0].strip() for process in started}
    name, secret = one.split(":")
    assert (name, len(secret) >= 32) == ("gauntlet", True)
    assert password_file(Home(tmp_path)).stat().st_mode & 0o777 == 0o600
    assert password(Home(tmp_path / "other")) != one
    assert str(password_file(Home(tmp_path))) in password_hint(Home(tmp_path))
    assert secret not in password_hint(Home(tmp_path))


@pytest.mark.parametrize("variable", [CLIENT, SERVER])
def test_password_of_the_environment_is_used_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "me:mine")
    home = Home(tmp_path)
    assert password(home) == "me:mine"
    assert password_hint(home) == f"Password of both pages, as name:password: as in {CLIENT}"
    assert list(tmp_path.iterdir()) == []


def test_server_of_the_environment_gets_no_password_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    with prefect_server(Home(tmp_path)) as url:
        assert (url, authorization(), CLIENT in os.environ) == ("http://127.0.0.1:1/api", {}, False)
    assert not (tmp_path / "prefect").exists()


@pytest.mark.slow
def test_server_asks_for_the_password_and_a_second_process_of_the_home_runs_a_flow(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with prefect_server(home, 0) as url:
        ask = partial(requests.post, f"{url}/flows/filter", json={}, timeout=60)
        assert requests.get(f"{url}/health", timeout=60).ok
        assert [ask().status_code, ask(auth=("gauntlet", "guessed")).status_code] == [401, 401]
        own = ("PREFECT_API_URL", CLIENT, "no_proxy", "NO_PROXY")
        hidden = {name: value for name, value in os.environ.items() if name not in own} | {"http_proxy": "nobody:1"}
        done = subprocess.run(
            [sys.executable, "-c", FLOW, home.root], env=hidden, capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == [url, "3"], done.stderr
        assert [one["name"] for one in ask(auth=prefect_account(home)).json()] == ["counted"]
        assert [one["name"] for one in ask(headers=authorization()).json()] == ["counted"]
        refused = command(tmp_path, "run", "digits-small-cnn", **{CLIENT: ""})  # PREFECT_API_URL names the server
        assert refused.returncode == 2
        assert f"{url[:-4]}/: the Prefect server refuses this process. Fix: set {CLIENT}" in refused.stderr
        with pytest.MonkeyPatch.context() as other, pytest.raises(ConfigError, match="started with another password"):
            other.delenv("PREFECT_API_URL")
            other.setenv(CLIENT, "me:mine")
            with prefect_server(home):
                pass
    assert CLIENT not in os.environ
    assert files_with(password(home), home.root) == [password_file(home)]


def test_password_is_in_no_file_that_a_run_leaves(finished_home: Path, session_password: str) -> None:
    assert len(session_password) > 32
    assert files_with(session_password, finished_home) == []
