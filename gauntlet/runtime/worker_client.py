"""The other end of a worker: start it, ask it, and notice when it does not answer."""

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
PASSIVE_WAIT = ("OMP_WAIT_POLICY", "PASSIVE")
"""Not for a worker: it runs alone while it is timed, and this slows PyTorch, which others run without it."""


class WorkerFailed(PipelineError):  # noqa: N818 - what happened, in the words of the reports
    """A worker died, hung, answered rubbish, or reported an error; after the last it is `alive`."""

    def __init__(self, message: str, *, alive: bool = False) -> None:
        super().__init__(message)
        self.alive = alive


class WorkerClient:
    """A running worker; use it as a context manager, so that no process is left behind."""

    def __init__(self, command: tuple[str, ...] = WORKER_COMMAND) -> None:
        self._killed = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env={name: value for name, value in os.environ.items() if (name, value) != PASSIVE_WAIT},
            start_new_session=True,  # whatever it starts ends with it
        )
        self._stdin, self._stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process and all that it started, if that was not done before."""
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
        """Load a model; the answer says how long the runtime took, in `load_ms`."""
        self.send_load(model, inputs, threads, options)
        return self.receive("load", timeout_s)

    def send_load(self, model: Path, inputs: Path, threads: int, options: Mapping[str, Any] | None = None) -> None:
        """Let the worker load a model, and `receive` the answer later."""
        request = {"do": "load", "model": str(model), "inputs": str(inputs), "threads": threads}
        self._send(request | {"options": dict(options or {})})

    def run(self, batch: int, at_least_ms: float, timeout_s: float) -> dict[str, Any]:
        """Time the model."""
        return self.request({"do": "run", "batch": batch, "at_least_ms": at_least_ms}, timeout_s)

    def processor_seconds(self) -> float:
        """Return the processor time that the worker has used; 0 where it is gone."""
        return processor_seconds(self._process.pid)

    def request(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return the answer; see `gauntlet.runtime.worker` for what can be asked.

        Raises:
            WorkerFailed: when the worker died, gave no answer in time, answered rubbish, or reported an error.
        """
        self._send(request)
        return self.receive(request["do"], timeout_s)

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise WorkerFailed(self._obituary()) from error

    def receive(self, what: str, timeout_s: float) -> dict[str, Any]:
        """Return the answer to what was sent; raises what `ask` does."""
        stdout = self._stdout
        line, deadline = b"", monotonic() + timeout_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - monotonic()))
            if not ready or monotonic() > deadline:
                self._kill()
                raise WorkerFailed(f"no answer to '{what}' within {timeout_s:g} s; the worker was ended")
            part = stdout.read(1 << 16)
            if not part:
                raise WorkerFailed(self._obituary())
            line += part
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise WorkerFailed(f"the worker answered rubbish: {line[:80]!r}") from error
        if not isinstance(answer, dict):
            raise WorkerFailed(f"rubbish: {answer!r}")
        if "error" in answer:
            raise WorkerFailed(str(answer["error"]), alive=True)
        return answer

    def _obituary(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._kill()
            return "the worker closed its output without ending; it was ended"
        self._kill()  # at once, what the worker started
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        last = "".join(self._log.read().decode(errors="replace").strip().splitlines()[-1:])[:200]
        why = "it needs more memory than it may have: " if NO_MEMORY.search(last) else ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"{why}the worker {how}" + (f": {last.strip()}" if last else "")
