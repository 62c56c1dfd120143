"""Start a worker, or copy a started one; send it requests, and detect when it does not reply."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Self

from gauntlet.core.errors import PipelineError
from gauntlet.runtime.resources import processor_seconds
from gauntlet.runtime.worker import NO_MEMORY, STATUS, WORKER_COMMAND

MAX_LOG_BYTES = 1 << 16
COPY_TIMEOUT_S = 60.0
SHORT_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""Removed from a worker's environment: it slows PyTorch, and a timed worker runs alone."""


class WorkerFailed(PipelineError):  # noqa: N818 - reads as the reports do
    """A worker died, hung, sent an invalid reply, or reported an error; after the last it is `alive`."""

    def __init__(self, message: str, *, alive: bool = False) -> None:
        super().__init__(message)
        self.alive = alive


class WorkerTemplate:
    """A process that has imported an engine, and forks workers, which are ready sooner than new ones.

    It ends with its last copy after `close`; as a context manager, it waits for that.
    """

    def __init__(self, command: tuple[str, ...], engine: str) -> None:
        self._socket, requests = socket.socketpair()
        with requests:
            self._process = _start((*command, engine), requests.fileno(), subprocess.DEVNULL, subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        try:
            self._process.wait(COPY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Make no more copies."""
        self._socket.close()

    def processor_seconds(self) -> float:
        """Return the processor time that it has used, without that of its copies."""
        return processor_seconds(self._process.pid, children=False)

    def copy(self, *streams: int) -> "WorkerCopy":
        """Return a worker with these files as its standard input, output and error."""
        status, end = os.pipe()
        with contextlib.suppress(OSError):  # it has ended
            socket.send_fds(self._socket, [b"1"], [*streams, end])
        os.close(end)
        return WorkerCopy(status)


class WorkerCopy:
    """A worker that is no child of this process, with what is used of `subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.used_s = 0.0
        """Processor time that it has taken, when it has ended."""
        begun = os.read(status, STATUS.size) if select.select([status], [], [], COPY_TIMEOUT_S)[0] else b""
        self.pid = STATUS.unpack(begun)[0] if begun else 0
        if not self.pid:
            os.close(status)
            raise WorkerFailed("the worker's template has ended, or does not copy itself")

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended; `subprocess.TimeoutExpired` when it does not in time."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            ended = os.read(self._status, STATUS.size)
            _, self.returncode, self.used_s = STATUS.unpack(ended) if ended else (0, -signal.SIGKILL, 0.0)
            os.close(self._status)
        return self.returncode


class WorkerClient:
    """A running worker; as a context manager, it leaves no process behind."""

    def __init__(self, command: tuple[str, ...] = WORKER_COMMAND, template: WorkerTemplate | None = None) -> None:
        self._killed = self._is_stopped = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        (taken, stdin), (stdout, given) = os.pipe(), os.pipe()
        self._stdin, self._stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb", 0)
        streams = taken, given, self._log.fileno()
        try:
            self._process = template.copy(*streams) if template else _start(command, *streams)
        except BaseException:  # such as a signal: nobody has the process, and it ends with its input
            self._stdin.close()
            raise
        finally:
            os.close(taken)
            os.close(given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> float:
        """End the process and all that it started; return the processor seconds it took. Again, it does nothing."""
        seconds = self.processor_seconds()
        if not self._log.closed:
            self._kill()
            self._stdin.close()
            self._stdout.close()
            self._process.wait()
            self._log.close()
        return seconds if isinstance(self._process, subprocess.Popen) else self._process.used_s

    def _kill(self) -> None:
        """Kill the process group, once: some time after the process is reaped, its id may belong to another one."""
        self._signal(signal.SIGKILL)
        self._killed = True

    def load(
        self, model: Path, inputs: Path, threads: int, timeout_s: float, options: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Load a model; `load_ms` of the reply is the runtime's time."""
        self.send_load(model, inputs, threads, options)
        return self.receive("load", timeout_s)

    def send_load(self, model: Path, inputs: Path, threads: int, options: Mapping[str, Any] | None = None) -> None:
        """Start to load a model; `receive` the reply later."""
        request = {"do": "load", "model": str(model), "inputs": str(inputs), "threads": threads}
        self._send(request | {"options": dict(options or {})})

    def run(self, batch: int, at_least_ms: float, timeout_s: float, **how: object) -> dict[str, Any]:
        """Time the model for at least the given time; `how` holds the worker's other keys."""
        return self._timed({"batch": batch, "at_least_ms": at_least_ms, **how}, timeout_s)

    def run_calls(self, batch: int, calls: int, timeout_s: float, **how: object) -> dict[str, Any]:
        """Time so many calls of the model; `how` as for `run`."""
        return self._timed({"batch": batch, "calls": calls, **how}, timeout_s)

    def _timed(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Time calls; then the worker's threads, which may spin, are idle, or stopped until the next request.

        Only a copy is stopped: another worker would stay stopped for ever if this process were killed.
        """
        is_copy = isinstance(self._process, WorkerCopy)
        reply = self.request({"do": "run", "waits": not is_copy, **request}, timeout_s)
        if is_copy:
            self._signal(signal.SIGSTOP)
            self._is_stopped = True
        return reply

    def processor_seconds(self) -> float:
        """Return the processor time that the worker has used; 0 after its end."""
        return processor_seconds(self._process.pid)

    def request(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one of the requests of `gauntlet.runtime.worker` and return the reply; `WorkerFailed` without one."""
        self._send(request)
        return self.receive(request["do"], timeout_s)

    def _signal(self, number: int) -> None:
        if not self._killed:
            with contextlib.suppress(OSError):  # all have ended
                os.killpg(self._process.pid, number)

    def _send(self, request: dict[str, Any]) -> None:
        if self._is_stopped:
            self._signal(signal.SIGCONT)
            self._is_stopped = False
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise WorkerFailed(self._cause_of_end()) from error

    def receive(self, what: str, timeout_s: float) -> dict[str, Any]:
        """Return the reply to the request that was sent; raises as `request` does."""
        line, deadline = b"", monotonic() + timeout_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - monotonic()))
            if not ready or monotonic() > deadline:
                self._kill()
                raise WorkerFailed(f"no reply to '{what}' within {timeout_s:g} s; the worker was stopped")
            part = self._stdout.read(1 << 16)
            if not part:
                raise WorkerFailed(self._cause_of_end())
            line += part
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise WorkerFailed(f"the worker sent an invalid reply: {line[:80]!r}")
        if "error" in reply:
            raise WorkerFailed(str(reply["error"]), alive=True)
        return reply

    def _cause_of_end(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._kill()
            return "the worker closed its output without ending; it was stopped"
        self._kill()  # at once, what the worker started
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        last = "".join(self._log.read().decode(errors="replace").strip().splitlines()[-1:])[:200]
        why = "exceeds the memory limit: " if NO_MEMORY.search(last) else ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"{why}the worker {how}" + (f": {last.strip()}" if last else "")


def _start(command: tuple[str, ...], stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    """Start a process; its children end with it."""
    environment = {name: value for name, value in os.environ.items() if SHORT_WAIT.get(name) != value}
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, start_new_session=True)
