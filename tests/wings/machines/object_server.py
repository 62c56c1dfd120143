"""A real S3 server (moto's, over HTTP) on a free port, in a process of its own that can be killed and started again."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import needs
from free_ports import free_port

from gauntlet.core.artifact import open_store
from wings.machines.library.object_store import ObjectStore

SECRET = "a-secret-that-no-file-may-hold"
BUCKET = "models"
MIB = 1 << 20
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


SERVE = """
import sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import main
s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(sys.argv[1], "us-east-1")
main(sys.argv[2:])
"""
"""With the bucket from its first response on, as a server that has kept its disk."""


@dataclass
class ObjectServer:
    """The server; what it holds is lost when it is killed."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true", **CREDENTIALS}

    def start(self) -> None:
        """Start it with an empty bucket, and wait until it responds."""
        command = [sys.executable, "-c", SERVE, BUCKET, "--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, "TMPDIR": str(self.folder), "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": "65536"}
        with (self.folder / "object-server.log").open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        while not self._responds():
            assert self.process.poll() is None, (self.folder / "object-server.log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def requests(self, method: str) -> list[str]:
        """Return the paths of the requests with a method that it has logged."""
        return re.findall(
            rf'"{method} (\S+) HTTP', (self.folder / "object-server.log").read_text()
        )  # the last line may be half written

    def _responds(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/{BUCKET}", timeout=60).close()
        except OSError:
            return False
        return True


@contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    """Start a server that is killed at the end; skip the test where it is not installed."""
    try:
        import moto  # noqa: F401
        import obstore  # noqa: F401
    except ModuleNotFoundError as error:
        needs.missing(f"{error.name} is not installed")
    server = ObjectServer(free_port(), folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def machine(address: str, folder: Path) -> ObjectStore:
    """The store as a machine with its own folder sees it."""
    store = open_store(folder, address)
    assert isinstance(store, ObjectStore)
    return store


def made(folder: Path, name: str = "model.onnx", content: bytes = b"weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path
