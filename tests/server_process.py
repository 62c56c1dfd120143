"""A real `gauntlet serve` on a free port of the loopback, and a client that speaks plain HTTP."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gauntlet.core.arrays import NamedArrays
from serving.open_inference import DATATYPES

WAIT_S = 60
Value = TypeVar("Value")


@dataclass(frozen=True)
class Response:
    """Status, headers (lower case) and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json()["error"])


@dataclass
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    port: int
    logs: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: bytes | str | dict[str, Any] | None = None, **headers: str) -> Response:
        return self.request("POST", path, json.dumps(body) if isinstance(body, dict) else body, **headers)

    def log_entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.logs.read_text().splitlines()]

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels."""
        lines = [line for line in self.get("/metrics").body.decode().splitlines() if line.startswith(name)]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def start(folder: Path, *words: str | Path) -> subprocess.Popen[str]:
    """Start the command; its logs are in `folder`/logs."""
    with (folder / "logs").open("w") as logs:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", "serve", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=logs,
            text=True,
            env=dict(os.environ),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # below nohup, it outlives its terminal
        )


@contextmanager
def serving(folder: Path, *words: str | Path) -> Iterator[ServerProcess]:
    """Start a server, wait until it listens, and end it."""
    process = start(folder, *words, "--port", "0")
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on http"), (folder / "logs").read_text()
        yield ServerProcess(process, int(line.rsplit(":", 1)[1]), folder / "logs")
    finally:
        process.kill()
        process.wait()


def json_request(inputs: NamedArrays, **more: Any) -> dict[str, Any]:
    """Return the body of `infer` with JSON tensors."""
    tensors = [
        {"name": name, "shape": list(a.shape), "datatype": DATATYPES.get(a.dtype.name, "BYTES"), "data": a.tolist()}
        for name, a in inputs.items()
    ]
    return {"inputs": tensors, **more}


def binary_outputs(response: Response) -> NamedArrays:
    """Return the binary outputs of a response."""
    names = {datatype: name for name, datatype in DATATYPES.items()}
    place = int(response.headers["inference-header-content-length"])
    found: NamedArrays = {}
    for output in json.loads(response.body[:place])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        raw = np.frombuffer(response.body[place : place + size], names[output["datatype"]])
        found[output["name"]] = raw.reshape(output["shape"])
        place += size
    assert place == len(response.body)
    return found


def wait_until(look: Callable[[], Value], enough: Callable[[Value], bool]) -> Value:
    """Look until it is enough; the time limit ends a test that waits in vain."""
    end = time.monotonic() + WAIT_S
    while not enough(found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
