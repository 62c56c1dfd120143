"""The services of a Compose project: start them, kill them, wait until they are back."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PAUSE_S = 1.0
HELPER_IMAGE = "onnx-gauntlet:serving"  # any that is here and has a shell


class TrialError(Exception):
    """A check that failed; the message says what was seen."""


def wait_until(ready: Callable[[], object], what: str, patience_s: float = 300.0) -> None:
    """Return when `ready` does; `TrialError` when it does not in time. A server that does not respond is not ready."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if ready():
                return
        except OSError:  # requests' errors, too
            pass
        if time.monotonic() > deadline:
            raise TrialError(f"timed out after {patience_s:.0f} s: {what}")
        time.sleep(PAUSE_S)


@dataclass(frozen=True)
class Services:
    """The services of one Compose project; `compose` is the command with its files."""

    compose: tuple[str, ...]

    def do(self, *words: str) -> str:
        """Run one command of Compose and return its output."""
        return _output([*self.compose, *words])

    def start(self, *services: str) -> float:
        """Start services and what they need; return the seconds until all are healthy."""
        began = time.monotonic()
        self.do("up", "--detach", "--wait", "--wait-timeout", "600", *services)
        return time.monotonic() - began

    def kill(self, service: str) -> float:
        """Kill a service as a crash would; return the seconds until it has restarted by itself and is healthy.

        After `docker kill`, an engine restarts nothing, so the first process of the container is killed by its id on
        the engine's machine.
        """
        began, before = time.monotonic(), self._state(service)
        helper = ("docker", "run", "--rm", "--pid", "host", "--privileged", "--user", "0", "--network", "none")
        _output([*helper, "--entrypoint", "sh", HELPER_IMAGE, "-c", f"kill -9 {before['Pid']}"])
        wait_until(lambda: self._healthy_since(service, before["StartedAt"]), f"{service} is healthy again")
        return time.monotonic() - began

    def interrupt(self, service: str, seconds: float) -> None:
        """Let a service stand still for some time."""
        self.do("pause", service)
        time.sleep(seconds)
        self.do("unpause", service)

    def _healthy_since(self, service: str, earlier: str) -> bool:
        state = self._state(service)
        return bool(state["StartedAt"] != earlier and state["Health"]["Status"] == "healthy")

    def _state(self, service: str) -> dict[str, Any]:
        container = self.do("--profile", "*", "ps", "--all", "--quiet", service).strip()
        state: dict[str, Any] = json.loads(_output(["docker", "inspect", "--format", "{{json .State}}", container]))
        return state


def image_sizes(names: Sequence[str]) -> dict[str, float]:
    """Return the size of each image, in GB."""
    sizes = _output(["docker", "image", "inspect", "--format", "{{.Size}}", *names]).split()
    return {name: int(size) / 1e9 for name, size in zip(names, sizes, strict=True)}


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise TrialError(f"{' '.join(command)}: exit code {done.returncode}\n" + "\n".join(lines[-30:]))
    return done.stdout
