"""Ports are taken when they are chosen, and a server inherits its own; a stopped server leaves no process."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from harness import until

from flows.servers import local_servers
from flows.servers.local_servers import comes_up, launch, stop
from flows.servers.ports import Port

pytestmark = pytest.mark.slow
SERVER = """
import http.server, socket
server = http.server.HTTPServer(("", 0), http.server.SimpleHTTPRequestHandler, bind_and_activate=False)
server.socket = socket.socket(fileno=0)
server.serve_forever()
"""


def test_chosen_port_is_not_chosen_again_before_its_server_runs() -> None:
    first = Port.take()
    second = Port.take(first.number)
    assert second.number != first.number


def test_server_inherits_the_port_and_starts_again_on_it(tmp_path: Path) -> None:
    port = Port.take()
    for _ in range(2):
        server = launch([sys.executable, "-c", SERVER], dict(os.environ), tmp_path / "log", port.listener())
        try:
            with urllib.request.urlopen(f"{port.address}/", timeout=60) as response:
                assert response.status == 200
            assert Port.take(port.number).number != port.number
        finally:
            stop(server)


def test_port_that_another_program_took_since_is_refused() -> None:
    port = Port.take()
    port.listener().close()
    other = Port.take(port.number)
    assert other.number == port.number
    with pytest.raises(OSError, match="in use"):
        port.listener()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits")
def test_server_that_waits_for_a_processor_is_not_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_servers, "START_TIMEOUT_S", 2)
    processor = min(os.sched_getaffinity(0))
    alone = f"import os, time; os.sched_setaffinity(0, {{{processor}}})\n"
    slow = f"{alone}os.nice(10)\nwhile time.process_time() < 0.5: pass\n{SERVER}"
    port = Port.take()
    busy = subprocess.Popen([sys.executable, "-c", f"{alone}while True: pass"])
    with port.listener() as listener:
        server = psutil.Popen([sys.executable, "-c", slow], stdin=listener, cwd=tmp_path)
    try:
        assert comes_up(server, f"{port.address}/")
    finally:
        busy.kill()
        busy.wait()
        stop(server)


def test_server_is_not_late_when_a_child_that_waited_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted_s = iter((0.0, 60.0))
    monkeypatch.setattr(local_servers, "START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(local_servers, "_processor_wait_s", lambda _: next(counted_s, 0.0))
    port = Port.take()
    with port.listener() as listener:
        slow = f"import time; time.sleep(1)\n{SERVER}"
        server = psutil.Popen([sys.executable, "-c", slow], stdin=listener, cwd=tmp_path)
    try:
        assert comes_up(server, f"{port.address}/")
    finally:
        stop(server)


def test_server_that_stands_still_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_servers, "START_TIMEOUT_S", 0.2)
    server = psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not comes_up(server, "http://127.0.0.1:9/")
    finally:
        stop(server)


def test_server_that_ends_by_itself_after_its_time_is_stopped_all_the_same() -> None:
    child = "import os, signal, time; parent = os.getppid(); print(parent, flush=True)\n"
    child += "signal.signal(signal.SIGTERM, lambda *_: (os.kill(parent, signal.SIGKILL), time.sleep(1), os._exit(0)))\n"
    deaf = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += f"subprocess.run([sys.executable, '-c', {child + 'time.sleep(600)'!r}])"
    command = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, deaf]  # a parent that reaps it, as init does
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        server = psutil.Process(int(shell.stdout.readline()))
        time.sleep(1)  # until the child handles signals
        stop(server, patience_s=3)
        assert not server.is_running()


def test_child_that_a_stopped_server_leaves_is_not_waited_for(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    server = launch(
        [sys.executable, "-c", f"import subprocess; subprocess.run({sleep})"], dict(os.environ), tmp_path / "log"
    )
    [child] = until(server.children, 60)
    began = time.monotonic()
    stop(server, patience_s=60)
    assert time.monotonic() - began < 30
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
