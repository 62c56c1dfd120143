"""Keeps the parts of a platform running on this machine: each in a thread, started again when its process ends.

What runs is noted in `platform/state.json` of the home, so that `gauntlet status` and `gauntlet down` need no
connection to it. As a program, `python -m wings.platform.supervisor HOME`, it waits until its standard input ends, and
then stops what a supervisor has left running.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import Field

from flows.record.home import Home
from flows.servers.local_servers import began, is_alive, process_that_began, stop
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import PipelineError, one_line
from gauntlet.core.frozen import Frozen

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a part is started again; doubled each time that it ends within a minute."""
POLL_S = 0.2
PART_END_S = 30.0
"""For a part to end, or a worker's run to close its record."""
SUPERVISED = "GAUNTLET_SUPERVISED"
"""Environment variable of all that a platform starts: its home. So a part is found that is not noted yet."""


class PartState(Frozen):
    """What is known of one part."""

    name: str
    pid: int | None = None
    began: str = Field("", description="when its process began, as `began` says")
    ready: bool = False
    since: str | None = Field(None, description="when it became ready; ISO 8601, UTC")
    restarts: int = 0
    address: str = ""
    serves: str = Field("", description="the model that it serves")
    error: str = ""

    @property
    def process(self) -> psutil.Process | None:
        """The part's process, or None where it has ended."""
        process = process_that_began(self.pid, self.began)
        return process if process is not None and is_alive(process) else None


class PlatformState(Frozen):
    """The supervisor and its parts."""

    supervisor: PartState
    parts: tuple[PartState, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether every part is ready."""
        return bool(self.parts) and all(part.ready for part in self.parts)

    @property
    def serves(self) -> str:
        """The model that a part serves; empty without one."""
        return next((part.serves for part in self.parts if part.serves), "")


def state_file(home: Home) -> Path:
    """Return the file that the supervisor keeps its state in."""
    return home.root / "platform" / "state.json"


def supervisor_lock(home: Home) -> Path:
    """Return the file that the supervisor locks: there is one for a home."""
    return home.root / "platform" / "lock"


def read_state(home: Home) -> PlatformState | None:
    """Return the last state that was noted; None where there was no platform."""
    try:
        return PlatformState.model_validate_json(state_file(home).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


@dataclass
class Part:
    """One part of the platform."""

    name: str
    start: Callable[[], psutil.Process | None]
    """Starts it and waits until it is ready; None for work that is done once."""
    address: str = ""
    serves: str = ""
    end: Callable[[psutil.Process, float], None] = stop
    """Stops its process, and kills it where that takes more than so many seconds."""
    state: PartState = field(init=False)

    def __post_init__(self) -> None:
        self.state = PartState(name=self.name, address=self.address, serves=self.serves)

    def keep_running(self, stopping: threading.Event, changed: Callable[[], None]) -> None:
        """Start the part, and again whenever it ends, until `stopping` is set; then stop it."""
        pause_s = FIRST_PAUSE_S
        while not stopping.is_set():
            began = time.monotonic()
            process = self._started()
            changed()
            if process is None and self.state.ready:
                return
            while process is not None and is_alive(process) and not stopping.wait(POLL_S):
                pass
            if stopping.is_set():
                break
            if process is not None:
                end_group(process.pid)
            error = self.state.error or f"ended with exit code {process.wait() if process else '?'}"
            self.state = self.state.replace(ready=False, error=error, restarts=self.state.restarts + 1)
            changed()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if time.monotonic() - began < 60 else FIRST_PAUSE_S
            stopping.wait(pause_s)
        if running := self.state.process:
            self.end(running, PART_END_S)

    def _started(self) -> psutil.Process | None:
        try:
            process = self.start()
        except (PipelineError, OSError, psutil.Error) as error:
            self.state = self.state.replace(ready=False, error=one_line(error))
            return None
        noted = {} if process is None else {"pid": process.pid, "began": began(process)}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.state = self.state.replace(ready=True, since=now, error="", **noted)
        return process


def left_over(home: Home) -> Iterator[psutil.Process]:
    """Yield the processes of a home's platform: the parts that are noted, and what else a supervisor has started."""
    state = read_state(home)
    yield from (process for part in (state.parts if state else ()) if (process := part.process))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(SUPERVISED) == str(home.root.resolve()):
                yield process


def guard(home: Home) -> None:
    """Start a process that stops every part when this one ends in a way that leaves it no time to do so itself."""
    end_of_this, _held_open = os.pipe()  # the kernel closes what is held open, however this process ends
    command, environment = [sys.executable, "-m", __name__, str(home.root)], {**os.environ, SUPERVISED: ""}
    subprocess.Popen(command, env=environment, stdin=end_of_this, start_new_session=True)
    os.close(end_of_this)


def end_group(leader: int) -> None:
    """Kill what a process that was started in a session of its own has left behind; it may hold the port."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Supervisor:
    """Runs the parts: servers first, and when these are ready, what talks to them."""

    def __init__(self, home: Home, servers: list[Part], clients: list[Part]) -> None:
        self.home, self.servers, self.clients = home, servers, clients
        self.stopping, self._clients_ended = threading.Event(), threading.Event()
        self._writing = threading.Lock()
        me = psutil.Process()
        self.me = PartState(name="supervisor", pid=me.pid, began=began(me), ready=True)

    def run(self) -> None:
        """Keep everything running until `stopping` is set; then stop the servers last: runs tell them how they end."""
        self._note()
        servers = self._begin(self.servers, self._clients_ended)
        while not all(part.state.ready for part in self.servers) and not self.stopping.wait(POLL_S):
            pass
        clients = self._begin(self.clients, self.stopping) if not self.stopping.is_set() else []
        self.stopping.wait()
        self._end(clients)
        self._clients_ended.set()
        self._end(servers)
        state_file(self.home).unlink(missing_ok=True)

    def _begin(self, parts: list[Part], stopping: threading.Event) -> list[threading.Thread]:
        threads = [threading.Thread(target=part.keep_running, args=(stopping, self._note)) for part in parts]
        for thread in threads:
            thread.start()
        return threads

    def _end(self, threads: list[threading.Thread]) -> None:
        """Wait until parts have stopped; what is not ready yet is ended first, as its start would wait for it."""
        while any(thread.is_alive() for thread in threads):
            known = {part.state.pid for part in (*self.servers, *self.clients)}
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error, OSError):
                    if child.pid not in known and child.environ().get(SUPERVISED):  # the guard has it empty
                        child.terminate()
            time.sleep(POLL_S)

    def _note(self) -> None:
        with self._writing:
            parts = tuple(part.state for part in (*self.servers, *self.clients))
            state = PlatformState(supervisor=self.me, parts=parts)
            write_atomically(state_file(self.home), state.model_dump_json(indent=1))


if __name__ == "__main__":
    sys.stdin.read()
    for process in [*left_over(Home(Path(sys.argv[1])))]:
        stop(process)
