"""A Prefect server of our own: shared while it is needed, gone when it is not, whatever happened to its users."""

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from harness import GAUNTLET, prefect_account, until
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from flows.record.home import Home
from flows.servers.local_servers import (
    note_server,
    profile_api_url,
    recorded_process,
    responds,
    running,
    start_prefect,
    stop,
    stop_prefect,
)
from flows.servers.password import CLIENT
from flows.servers.ports import Port
from gauntlet.runtime.signals import end_in_order, signals_held_back

pytestmark = pytest.mark.slow
USER = """
import sys, time
from pathlib import Path
from flows.record.home import Home
from flows.servers.local_servers import prefect_server
with prefect_server(Home(Path(sys.argv[1])), 4399) as url:
    print(url, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def environment() -> dict[str, str]:
    hidden = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def start(home: Home, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, home.root, str(seconds)], stdout=subprocess.PIPE, text=True, env=environment()
    )


def url_of(user: subprocess.Popen[str]) -> str:
    return user.stdout.readline().strip()


def use(home: Home, seconds: float) -> tuple[subprocess.Popen[str], str]:
    user = start(home, seconds)
    return user, url_of(user)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, str]]:
    """A home whose server has a user, and the address of its API."""
    home = Home(tmp_path_factory.mktemp("used") / "home")
    user, url = use(home, 600)
    yield home, url
    user.terminate()
    user.wait()
    stop_prefect(home)


def test_server_is_shared_and_outlives_a_killed_user_but_not_the_last_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    killed, url = use(home, 600)
    assert url.startswith("http://127.0.0.1:")
    assert responds(f"{url}/health")
    server = recorded_process(home)
    killed.kill()
    killed.wait()
    assert responds(f"{url}/health")  # an orphan now
    last, same = use(home, 0)
    assert same == url
    last.wait()
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert recorded_process(home) is None


def test_two_homes_that_start_at_once_get_servers_of_their_own(tmp_path: Path) -> None:
    homes = [Home(tmp_path / name) for name in ("one", "two")]
    users = [start(home, 600) for home in homes]
    try:
        urls = [url_of(user) for user in users]
        assert len(set(urls)) == 2
        for home, url in zip(homes, urls, strict=True):
            assert requests.post(f"{url}/flows/filter", json={}, auth=prefect_account(home), timeout=60).json() == []
    finally:
        for home, user in zip(homes, users, strict=True):
            user.terminate()
            user.wait()
            stop_prefect(home)


def test_web_pages_of_other_origins_and_names_cannot_call_the_server(used: tuple[Home, str]) -> None:
    """A page that the user visits could otherwise plant an automation, which runs a shell command."""
    home, url = used
    assert home.root.stat().st_mode & 0o077 == 0  # nor can other users of the machine read it
    own = url.removesuffix("/api")
    planted = {"data": b'{"name": "planted"}', "timeout": 60}  # as a browser sends it: without a content type
    account = prefect_account(home)
    for headers in ({"Origin": "http://127.0.0.2:8000"}, {"Origin": "null"}, {"Host": "evil.example:4200"}):
        answer = requests.post(f"{url}/flows/", headers=headers, auth=account, **planted)
        assert answer.status_code in (400, 403)
    flows = requests.post(f"{url}/flows/filter", json={}, auth=account, timeout=60).json()
    assert "planted" not in {flow["name"] for flow in flows}
    assert requests.post(f"{url}/flows/", headers={"Origin": own}, auth=account, **planted).status_code == 201
    assert requests.get(own, timeout=60).text.startswith("<!")
    with pytest.raises(requests.ConnectionError):  # another address of this machine
        requests.get(own.replace("127.0.0.1", "127.0.0.2"), timeout=60)


def test_clients_that_write_at_once_wait_for_one_another_and_none_is_refused(used: tuple[Home, str]) -> None:
    home, url = used

    def deploy(name: int) -> set[int]:
        with requests.Session() as session:
            session.auth = prefect_account(home)
            flow = session.post(f"{url}/flows/", json={"name": f"flow-{name}"}, timeout=60).json()["id"]
            deployment = {"name": "nightly", "flow_id": flow}
            return {session.post(f"{url}/deployments/", json=deployment, timeout=60).status_code for _ in range(10)}

    with ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(deploy, range(8))) == {200, 201}  # 503 tells a client to try again later


def test_server_that_does_not_respond_for_a_while_is_waited_for_and_not_doubled(used: tuple[Home, str]) -> None:
    home, url = used
    server = recorded_process(home)
    server.suspend()
    threading.Timer(5, server.resume).start()
    second, same = use(home, 0)
    assert (same, recorded_process(home)) == (url, server)
    assert second.wait() == 0
    assert responds(f"{url}/health")  # its other user goes on


@pytest.mark.nightly
def test_killed_server_still_knows_who_holds_a_concurrency_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no lease is ever released: what waits for the limit waits forever."""
    monkeypatch.delenv(CLIENT, raising=False)  # that of the tests' server
    home, port = Home(tmp_path), Port.take()
    home.prefect.mkdir()
    server = start_prefect(home, port, int)
    api = f"{port.address}/api/v2/concurrency_limits"
    again = Retry(total=10, status_forcelist=(423, 503), allowed_methods=None, backoff_factor=0.5)
    try:
        with requests.Session() as session:  # a busy server asks its clients to repeat a request, and Prefect's do
            session.mount("http://", HTTPAdapter(max_retries=again))
            session.auth = prefect_account(home)
            session.post(f"{api}/", json={"name": "one", "limit": 1}, timeout=60).raise_for_status()
            taken = {"names": ["one"], "slots": 1, "mode": "concurrency", "lease_duration": 3600}
            response = session.post(f"{api}/increment-with-lease", json=taken, timeout=60)
            assert response.ok, response.text
            lease = response.json()["lease_id"]
        server.kill()
        server.wait()
        server = start_prefect(home, port, int)
        renewal = {"json": {"lease_duration": 3600}, "auth": prefect_account(home)}
        renewed = requests.post(f"{api}/leases/{lease}/renew", timeout=60, **renewal)
        assert renewed.ok, renewed.text
    finally:
        stop(server)


def test_server_of_the_prefect_profile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    assert profile_api_url() is None
    (tmp_path / "profiles.toml").write_text('active = "a"\n[profiles.a]\nPREFECT_API_URL = "http://127.0.0.1:2/api"\n')
    assert profile_api_url() == "http://127.0.0.1:2/api"


def test_user_whom_the_system_does_not_know_has_a_home_for_prefect() -> None:
    program = "import os; os.getuid = lambda: 2**31 - 2; import flows"
    program += "; from prefect import flow; print(os.environ['HOME'])"
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "/\n"), done.stderr


def test_recorded_process_is_not_another_one_with_the_same_number(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prefect.mkdir(parents=True)
    (home.prefect / "server.json").write_text(f'{{"pid": {os.getpid()}, "began": "another boot 1.00", "url": ""}}')
    assert recorded_process(home) is None


def test_recorded_process_is_found_after_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    home.prefect.mkdir(parents=True)
    note_server(home.prefect / "server.json", psutil.Process(), "")
    boot = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 60)  # what Linux says then, for the same boot
    assert recorded_process(home) == psutil.Process()


def run_until_server_starts(home: Path, terminal: int) -> tuple["subprocess.Popen[bytes]", psutil.Process]:
    """Start a run with a terminal of its own; return it, and its Prefect server, which does not respond yet."""

    def own_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup, a run outlives its terminal

    command = subprocess.Popen(
        [GAUNTLET, "run", "digits-small-cnn"],
        env=environment() | {"GAUNTLET_HOME": str(home)},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    note = home / "prefect" / "server.json"
    while not note.exists():
        assert command.poll() is None
        time.sleep(0.05)
    return command, psutil.Process(json.loads(note.read_text())["pid"])


@pytest.mark.parametrize(
    ("ended_by", "code"), [("SIGTERM", 143), pytest.param("closed terminal", 129, marks=pytest.mark.nightly)]
)
def test_command_that_is_ended_leaves_no_server_behind_even_while_it_starts(
    tmp_path: Path, ended_by: str, code: int
) -> None:
    screen, terminal = pty.openpty()
    command, server = run_until_server_starts(tmp_path, terminal)
    os.close(terminal)
    if ended_by == "SIGTERM":
        command.terminate()
    else:
        os.close(screen)
    assert command.wait(300) == code
    if ended_by == "SIGTERM":
        assert b"gauntlet: interrupted; run the same command again" in os.read(screen, 100_000)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert not (tmp_path / "prefect" / "server.json").exists()


def test_command_under_nohup_goes_on_when_its_terminal_is_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        end_in_order()
        with signals_held_back(""):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_server_whose_starter_is_killed_before_it_notes_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    home, port = Home(tmp_path / ".gauntlet"), Port.take()
    home.prefect.mkdir(parents=True)
    monkeypatch.setattr("flows.servers.local_servers.note_server", killed)
    with pytest.raises(KeyboardInterrupt):
        start_prefect(home, port, lambda: None)
    try:
        until(lambda: recorded_process(home) is not None, 120)
        assert running(home) == f"{port.address}/api"
    finally:
        stop_prefect(home)


def test_program_that_does_not_speak_http_does_not_respond() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(responds, f"http://127.0.0.1:{server.getsockname()[1]}/api/health")
        with server.accept()[0] as client:
            client.sendall(b"SSH-2.0-OpenSSH\r\n")
        assert waiting.result() is False
