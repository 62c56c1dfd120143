"""`gauntlet serve` in a process of its own."""

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.errors import StageError

START_S, STOP_S = 300.0, 30.0
LISTENING = "serving on http://"
CODE = """
import sys
sys.path[:] = {path!r}
from gauntlet.runtime.resources import end_with_parent
end_with_parent()
from flows.cli.main import main
sys.exit(main())
"""
"""The command finds modules where this process does. It is named as text, because stages import nothing above them."""


@dataclass(frozen=True)
class ServerProcess:
    """A server that listens on a port of the loopback."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def require_alive(self) -> None:
        """Raise `StageError` with the last line of its log when it has ended."""
        if self.process.poll() is not None:
            raise _ended(self.process, self.log)


@contextmanager
def running_server(bundle: Path, log: Path, *words: str) -> Iterator[ServerProcess]:
    """Serve a bundle on a free port, and stop the server at the end.

    Raises:
        StageError: when it ends, or does not listen in time.
    """
    command = [sys.executable, "-c", CODE.format(path=sys.path), "serve", str(bundle), "--port", "0", *words]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
    try:
        yield ServerProcess(process, _port(process, log), log)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """Wait until the server listens."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_S)[0]:
        raise StageError(f"gauntlet serve: it does not listen after {START_S:g} s")
    line = process.stdout.readline()
    if not line.startswith(LISTENING):
        process.wait(STOP_S)
        raise _ended(process, log)
    return int(line.rsplit(":", 1)[1])


def _ended(process: subprocess.Popen[str], log: Path) -> StageError:
    last = "".join(log.read_text(errors="replace").strip().splitlines()[-1:]).removeprefix("gauntlet: ")
    return StageError(f"gauntlet serve ended with code {process.returncode}" + (f": {last[:400]}" if last else ""))
