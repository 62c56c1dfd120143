"""Parts are started, restarted when they end, and stopped; the state says so."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import psutil
import pytest
from harness import called

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.local_servers import began, is_alive, launch
from gauntlet.core.errors import ConfigError, PipelineError, StageError
from wings.platform import up_command
from wings.platform.local_platform import PlatformSettings, stop_worker
from wings.platform.supervisor import (
    SUPERVISED,
    Part,
    PlatformState,
    Supervisor,
    read_state,
    state_file,
    supervisor_lock,
)

pytestmark = pytest.mark.slow
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def sleeping() -> psutil.Process:
    return psutil.Popen(SLEEP, stdout=subprocess.DEVNULL)


def until(home: Home, ready: Callable[[PlatformState], bool]) -> Any:
    return harness.until(lambda: (state := read_state(home)) and ready(state) and state, 300)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / ".gauntlet")


def test_part_that_is_killed_comes_back_and_all_are_stopped_at_the_end(home: Home) -> None:
    done = []
    supervisor = Supervisor(home, [Part("server", sleeping, "http://a")], [Part("once", lambda: done.append(1))])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    first = until(home, lambda state: state.is_ready)
    known = [(part.name, part.restarts, part.process is None) for part in first.parts]
    assert known == [("server", 0, False), ("once", 0, True)]
    killed = first.parts[0].process
    killed.kill()
    second = until(home, lambda state: state.is_ready and state.parts[0].restarts == 1)
    replacement = second.parts[0].process
    assert replacement.pid != killed.pid
    supervisor.stopping.set()
    thread.join(timeout=120)
    assert not replacement.is_running() or replacement.status() == psutil.STATUS_ZOMBIE
    assert not state_file(home).exists()
    assert done == [1]


def test_what_a_killed_part_leaves_behind_is_ended_before_it_starts_again(home: Home, tmp_path: Path) -> None:
    """MLflow's server is such a part: its child listens, and would keep the port."""
    words = [sys.executable, "-c", f"import subprocess; subprocess.run({SLEEP})"]
    supervisor = Supervisor(home, [Part("server", lambda: launch(words, dict(os.environ), tmp_path / "log"))], [])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    leader = until(home, lambda state: state.is_ready).parts[0].process
    while not (children := leader.children()):
        time.sleep(0.05)
    leader.kill()
    until(home, lambda state: state.is_ready and state.parts[0].restarts == 1)
    _, alive = psutil.wait_procs(children, timeout=60)
    supervisor.stopping.set()
    thread.join(timeout=120)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


STARTING = """
import os, sys, time
from pathlib import Path
from flows.record.home import Home
from flows.servers.local_servers import launch
from wings.platform.supervisor import SUPERVISED, Part, Supervisor, guard

def start():
    pid = launch([sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ), home.root / "log").pid
    print(pid, flush=True)
    time.sleep(600)  # it does not respond yet

home = Home(Path(sys.argv[1]))
if sys.argv[2:]:
    guard(home)
os.environ[SUPERVISED] = str(home.root)
Supervisor(home, [Part("server", start)], []).run()
"""


def part_of_killed_supervisor(home: Home, *words: str) -> psutil.Process:
    command = [sys.executable, "-c", STARTING, str(home.root), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        part = psutil.Process(int(supervisor.stdout.readline()))
        supervisor.kill()
    return part


def test_part_of_a_supervisor_that_is_killed_while_it_starts_is_stopped_by_down(home: Home) -> None:
    part = part_of_killed_supervisor(home)
    assert is_alive(part)
    assert called(home.root.parent, "down").returncode == 0
    assert not is_alive(part)


def test_supervisor_that_begins_is_stopped_by_down(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = sleeping()
    monkeypatch.setattr(up_command, "launch", lambda *_: begun)
    monkeypatch.setattr(up_command, "READY_TIMEOUT_S", 1)
    assert called(home.root.parent, "up", PREFECT_API_URL="").returncode == 3
    assert called(home.root.parent, "down").returncode == 0
    assert not is_alive(begun)


def test_part_that_is_still_being_started_is_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a server that has been stopped."""
    monkeypatch.setenv(SUPERVISED, str(home.root))
    begun: list[psutil.Process] = []

    def wait() -> psutil.Process:
        begun.append(sleeping())
        begun[0].wait()
        return begun[0]

    supervisor = Supervisor(home, [Part("server", sleeping)], [Part("worker", wait)])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    harness.until(lambda: bool(begun), 60)
    supervisor.stopping.set()
    thread.join(timeout=300)
    assert not thread.is_alive()
    assert not is_alive(begun[0])


def test_servers_are_stopped_after_their_clients(home: Home, tmp_path: Path) -> None:
    """A run tells them how it ends."""
    server = sleeping()
    program = f"""
import os, psutil, signal, time
def end(*_):
    time.sleep(1)
    open({str(tmp_path / "status")!r}, "w").write(psutil.Process({server.pid}).status())
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open({str(tmp_path / "ready")!r}, "w").close()
time.sleep(600)
"""

    def client() -> psutil.Process:
        process = psutil.Popen([sys.executable, "-c", program])
        harness.until((tmp_path / "ready").exists, 60)
        return process

    supervisor = Supervisor(home, [Part("server", lambda: server)], [Part("client", client)])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    until(home, lambda state: state.is_ready)
    supervisor.stopping.set()
    thread.join(timeout=300)
    assert not is_alive(server)
    assert (tmp_path / "status").read_text() == psutil.STATUS_SLEEPING


WORKER = """
import os, signal, subprocess, sys, time
run = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
def end(*_):
    run.kill()  # as Prefect's worker does
    os._exit(0)
signal.signal(signal.SIGTERM, end)
run.wait()
time.sleep(600)
"""
RUN = """
import os, signal, sys, time
def end(*_):
    time.sleep(1)
    open(sys.argv[1] + "/closed", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + "/begun", "w").close()
time.sleep(600)
"""


def test_run_closes_its_record_before_its_worker_is_stopped(home: Home, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), RUN]
    supervisor = Supervisor(home, [Part("worker", lambda: psutil.Popen(command), end=stop_worker)], [])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    harness.until((tmp_path / "begun").exists, 60)
    worker = until(home, lambda state: state.is_ready).parts[0].process
    supervisor.stopping.set()
    thread.join(timeout=120)
    assert (tmp_path / "closed").exists()
    assert not is_alive(worker)


def test_part_of_a_supervisor_that_is_killed_is_stopped_by_its_guard(home: Home) -> None:
    part = part_of_killed_supervisor(home, "with guard")
    harness.until(lambda: not is_alive(part), 60)


def test_second_supervisor_of_a_home_ends_at_once(home: Home) -> None:
    """It would wait for the first one, and start everything again after `gauntlet down`."""
    settings = PlatformSettings(prefect_port=0, mlflow_port=0).model_dump_json()
    words = [sys.executable, "-m", "wings.platform.local_platform", settings]
    with locked(supervisor_lock(home)):
        environment = os.environ | {"GAUNTLET_HOME": str(home.root)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "a supervisor of this home runs already\n")


@pytest.mark.parametrize("kind", [StageError, ConfigError])
def test_client_waits_for_servers_and_the_state_says_why(home: Home, kind: type[PipelineError]) -> None:
    def refusing() -> psutil.Process:
        raise kind("port 1 is taken")

    done: list[int] = []
    supervisor = Supervisor(home, [Part("server", refusing)], [Part("once", lambda: done.append(1))])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    state = until(home, lambda state: bool(state.parts[0].error))
    assert not state.is_ready
    assert state.parts[0].error == "port 1 is taken"
    supervisor.stopping.set()
    thread.join(timeout=120)
    assert done == []


def test_state_of_another_process_with_the_same_id_is_not_ours(home: Home) -> None:
    me = psutil.Process()
    boot, _, seconds = began(me).partition(" ")
    part = Part("server", sleeping).state.replace(pid=me.pid)
    assert part.replace(began=f"{boot} {float(seconds) - 100:.2f}").process is None
    assert part.replace(began=f"another boot {seconds}").process is None
    assert part.replace(began=began(me)).process == me


def test_unreadable_state_is_no_state(home: Home) -> None:
    assert read_state(home) is None
    state_file(home).parent.mkdir(parents=True)
    state_file(home).write_text("{")
    assert read_state(home) is None


def test_state_that_may_not_be_read_is_not_taken_for_none(home: Home) -> None:
    state_file(home).parent.mkdir(parents=True)
    state_file(home).symlink_to(state_file(home))  # a loop: nobody may read it, whereas root reads every user's file
    with pytest.raises(OSError, match=state_file(home).name):
        read_state(home)
