"""A proxy before a real MLflow server, which kills a process at a chosen change of the registry.

It counts the requests that change something. What is killed runs in a process forked from one that has imported
everything.
"""

import http.client
import multiprocessing
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from flows.record.home import Home
from flows.servers.local_servers import start_mlflow, stop
from flows.servers.ports import HOST, Port

READS = ("GET", "HEAD")
SEARCHES = ("/search", "/get-latest-versions")
PROCESSES = multiprocessing.get_context("forkserver")


class Proxy(ThreadingHTTPServer):
    """Forwards to a server; at the chosen change, kills a process before it is forwarded, or before the reply."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((HOST, 0), Handler)
        self.upstream, self.changes, self.lock = port, 0, threading.Lock()
        self.kill_at: tuple[int, str] | None = None
        self.victim: int | None = None

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.server_port}"

    def kill(self, change: int, moment: str) -> bool:
        """Return whether this was the moment."""
        if self.kill_at != (change, moment) or self.victim is None:
            return False
        try:
            victim = psutil.Process(self.victim)
            victim.kill()
        except psutil.NoSuchProcess:  # it has ended, and another one makes this change
            return False
        psutil.wait_procs([victim], timeout=60)
        return True


class Handler(BaseHTTPRequestHandler):
    """One request of the proxy."""

    server: Proxy
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        body = self._body()
        changes = self.command not in READS and not any(word in self.path for word in SEARCHES)
        if changes:
            with self.server.lock:
                self.server.changes += 1
                number = self.server.changes
            if self.server.kill(number, "before"):
                self.close_connection = True
                return
        upstream = http.client.HTTPConnection(HOST, self.server.upstream, timeout=60)
        kept = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        upstream.request(self.command, self.path, body, kept | {"Content-Length": str(len(body))})
        reply = upstream.getresponse()
        content = reply.read()
        if changes:
            self.server.kill(number, "after")
        with_length = [
            (n, v) for n, v in reply.getheaders() if n.lower() not in ("transfer-encoding", "content-length")
        ]
        try:
            self.send_response_only(reply.status)
            for name, value in (*with_length, ("Content-Length", str(len(content)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # the client was killed
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = forward  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    home = Home(tmp_path_factory.mktemp("server"))
    server = start_mlflow(home, port := Port.take())
    PROCESSES.set_forkserver_preload(["wings.lifecycle.registry.watch", "onnxruntime"])
    made = Proxy(port.number)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
    stop(server)
