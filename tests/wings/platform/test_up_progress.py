"""`gauntlet up` names each part when it is ready, because all of them together take a minute."""

import io
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from harness import HIDDEN, called, command
from rich.console import Console

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.password import CLIENT
from flows.servers.ports import HOST
from gauntlet.core.errors import ConfigError, StageError
from wings.platform.local_platform import PlatformSettings, workers_online
from wings.platform.supervisor import PartState, PlatformState, state_file, supervisor_lock
from wings.platform.up_command import _require_same, _wait_until_ready


def running(folder: Path, *parts: PartState) -> Home:
    """Return the home of a platform with these parts."""
    home = Home(folder / ".gauntlet")
    state_file(home).parent.mkdir(parents=True)
    state_file(home).write_text(PlatformState(supervisor=PartState(name="supervisor"), parts=parts).model_dump_json())
    return home


def test_failed_part_is_named_at_once_and_whole_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = PartState(name="mlflow", ready=True, address="http://127.0.0.1:45678", restarts=3)
    error = f"automations.py ended with exit code 2: there is no block; see {'/long/path' * 9}"
    home, shown = running(tmp_path, server, PartState(name="deployments", error=error)), io.StringIO()
    monkeypatch.setattr("wings.platform.up_command.READY_TIMEOUT_S", 1)
    with locked(supervisor_lock(home)), pytest.raises(StageError):
        _wait_until_ready(home, None, Console(file=shown, width=80))
    assert shown.getvalue() == f"  mlflow is ready\n  deployments: {error}\n"
    status = called(tmp_path, "status", COLUMNS="80").stdout
    assert (f"deployments: {error}\n" in status, server.address in status) == (True, True)


@pytest.mark.slow
def test_up_beside_what_runs_changes_who_is_told(tmp_path: Path, prefect_server: str) -> None:
    addresses = {"prefect": prefect_server.removesuffix("/api"), "mlflow": "http://127.0.0.1:9"}
    home = running(tmp_path, *(PartState(name=name, ready=True, address=url) for name, url in addresses.items()))
    with locked(supervisor_lock(home)):
        environment = {**HIDDEN, CLIENT: os.environ[CLIENT], "GAUNTLET_NOTIFY": "slack-webhook/nobody"}
        done = command(tmp_path, "up", **environment)
    assert done.returncode == 3
    assert "exit code 2: GAUNTLET_NOTIFY: the Prefect server has no block 'slack-webhook/nobody'" in done.stderr


@pytest.mark.parametrize("body", [b"[{", b'[{"name": "worker"}'])
def test_server_that_ends_while_it_names_the_workers_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    class Interrupted(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + body.count(b"name")))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer((HOST, 0), Interrupted) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://{HOST}:{server.server_port}/api")
        assert workers_online(datetime.now(UTC)) == set()
        server.shutdown()


def test_port_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        number = other.getsockname()[1]
        done = command(tmp_path, "up", "--mlflow-port", str(number), **HIDDEN)
    assert done.returncode == 2
    assert f"--mlflow-port {number}: another program has this port. Fix: name another one" in done.stderr
    home = running(tmp_path, PartState(name="prefect", ready=True, address="http://127.0.0.1:4200"))
    with locked(supervisor_lock(home)):
        done = command(tmp_path, "up", "--prefect-port", "4999", **HIDDEN)
    assert (done.returncode, "it runs on http://127.0.0.1:4200 already. Fix: gauntlet down" in done.stderr) == (2, True)


def test_status_names_the_log_of_what_has_ended(tmp_path: Path) -> None:
    stopped = psutil.Popen([sys.executable, "-c", ""])
    stopped.wait()
    home = running(tmp_path, PartState(name="mlflow", pid=stopped.pid, ready=True))
    assert f"mlflow: it has ended; see {home.root}/mlflow-server.log\n" in called(tmp_path, "status").stdout


def test_of_two_at_once_the_second_waits_for_what_the_first_starts(tmp_path: Path) -> None:
    home, ended = Home(tmp_path), psutil.Popen([sys.executable, "-c", ""])
    ended.wait()
    me = PartState(name="supervisor")
    with locked(supervisor_lock(home)), ThreadPoolExecutor() as pool:
        waiting = pool.submit(_wait_until_ready, home, ended, Console(file=io.StringIO()))
        assert wait([waiting], timeout=1).not_done
        state_file(home).write_text(PlatformState(supervisor=me, parts=(me.replace(ready=True),)).model_dump_json())
        assert waiting.result(timeout=300).is_ready
    with pytest.raises(StageError, match="the supervisor has ended"):
        state_file(home).unlink()
        _wait_until_ready(home, ended, Console(file=io.StringIO()))


def test_platform_that_only_begins_is_not_told_from_what_is_asked(tmp_path: Path) -> None:
    """Two `up --serve digits` at once: the second one waits, and compares what the first one has started."""
    me, settings = PartState(name="supervisor"), PlatformSettings(prefect_port=1, mlflow_port=2, wings={})
    served = settings.replace(wings={"lifecycle": {"name": "digits"}})
    _require_same(PlatformState(supervisor=me), served)
    with pytest.raises(ConfigError, match="--serve digits: what runs already serves nothing"):
        _require_same(PlatformState(supervisor=me, parts=(me.replace(ready=True),)), served)
