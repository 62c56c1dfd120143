"""Start a worker, send it requests, and detect when it does not reply."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import IO, Any, Self, cast

from gauntlet.core.errors import PipelineError
from gauntlet.runtime.resources import processor_seconds
from gauntlet.runtime.worker import NO_MEMORY, WORKER_COMMAND

MAX_LOG_BYTES = 1 << 16
SHORT_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""Removed from a worker's environment: it slows PyTorch, and a timed worker runs alone."""


class WorkerFailed(PipelineError):  # noqa: N818 - reads as the reports do
    """A worker died, hung, sent an invalid reply, or reported an error; after the last it is `alive`."""

    def __init__(self, message: str, *, alive: bool = False) -> None:
        super().__init__(message)
        self.alive = alive


class WorkerClient:
    """A running worker; as a context manager, it leaves no process behind."""

    def __init__(self, command: tuple[str, ...] = WORKER_COMMAND) -> None:
        self._killed = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env={name: value for name, value in os.environ.items() if SHORT_WAIT.get(name) != value},
            start_new_session=True,  # its children end with it
        )
        self._stdin, self._stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process and all that it started; calling it again does nothing."""
        if not self._log.closed:
            self._kill()
            self._stdin.close()
            self._stdout.close()
            self._process.wait()
            self._log.close()

    def _kill(self) -> None:
        """Kill the process group, once: some time after the process is reaped, its id may belong to another one."""
        if not self._killed:
            self._killed = True
            with contextlib.suppress(OSError):  # all have ended
                os.killpg(self._process.pid, signal.SIGKILL)

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
        """Time the model for at least the given time; `how` holds the worker's `realtime` and `clock`."""
        return self.request({"do": "run", "batch": batch, "at_least_ms": at_least_ms, **how}, timeout_s)

    def run_calls(self, batch: int, calls: int, timeout_s: float, **how: object) -> dict[str, Any]:
        """Time so many calls of the model; `how` holds the worker's `untimed`, `realtime` and `clock`."""
        return self.request({"do": "run", "batch": batch, "calls": calls, **how}, timeout_s)

    def processor_seconds(self) -> float:
        """Return the processor time that the worker has used; 0 after its end."""
        return processor_seconds(self._process.pid)

    def request(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one of the requests of `gauntlet.runtime.worker` and return the reply; `WorkerFailed` without one."""
        self._send(request)
        return self.receive(request["do"], timeout_s)

    def _send(self, request: dict[str, Any]) -> None:
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
