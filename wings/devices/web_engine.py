"""ONNX Runtime Web in headless Chromium: a page polls this process for requests, and measures time itself."""

import atexit
import contextlib
import json
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.runtime.engines.base import Engine, TensorInfo
from gauntlet.runtime.resources import end_with_parent, sum_over_processes

PAGE = Path(__file__).with_suffix(".html")
SCRIPTS = {"wasm": "ort.wasm.min.mjs", "webgpu": "ort.webgpu.min.mjs"}
MIME = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}
UNUSED = ("background-networking", "background-timer-throttling", "component-update", "renderer-backgrounding", "sync")
SWITCHES = ("--headless=new", "--no-first-run", "--enable-unsafe-webgpu", *(f"--disable-{name}" for name in UNUSED))
PROFILE = "gauntlet-web-"
START_S, POLL_S, LONGEST_S = 30.0, 0.5, 3600.0
DTYPES = {"float32": "float", "float64": "double"}


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return why the target is unavailable: no browser, or one without what the backend needs."""
    if shutil.which(options["browser"]) is None:
        return f"{options['browser']} is not on the PATH"
    try:
        with contextlib.closing(Browser(options)) as browser:
            answer = browser.request({"do": "check_browser"}, START_S)
    except StageError as error:
        return str(error)
    if not answer["isolated"]:
        return "the browser does not isolate the page, so WebAssembly has no threads"
    if options["backend"] == "webgpu" and not answer["adapter"]:
        return f"{options['browser']} has no WebGPU adapter: no GPU that it can use"
    if options["backend"] == "webgpu" and answer["software"]:
        return f"{options['browser']} has no GPU: its WebGPU adapter is software ({answer['adapter']})"
    return None


class Browser:
    """A browser with one page, and the server on the loopback that the page connects to."""

    def __init__(self, options: dict[str, Any], model: Path | None = None) -> None:
        self.dist, self.files = Path(options["dist"]), {"/": PAGE}
        if model is not None:
            self.files |= {f"/model/{file.name}": file for file in (model, _data_file(model)) if file}
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self.replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self.arrays: NamedArrays = {}
        self.outputs: NamedArrays = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"browser": self}))
        self.server.daemon_threads = True
        _remove_stale_profiles()
        self.profile = tempfile.TemporaryDirectory(prefix=f"{PROFILE}{os.getpid()}-", ignore_cleanup_errors=True)
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # the sandbox does not start as root
        url = f"http://127.0.0.1:{self.server.server_port}/?script={SCRIPTS[options['backend']]}"
        self.process = subprocess.Popen(
            (options["browser"], *SWITCHES, *root, f"--user-data-dir={self.profile.name}", url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent,  # no thread runs yet that could hold a lock during the fork
        )
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        try:
            self.receive(START_S)  # the page is ready
        except StageError:
            self.close()
            raise

    def request(self, request: dict[str, Any], timeout_s: float = LONGEST_S) -> dict[str, Any]:
        """Send a request to the page and return the reply; `StageError` when it fails, or the browser ends."""
        self.requests.put(request)
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the page's reply; raises as `request` does."""
        waited = 0.0
        while waited < timeout_s:
            with contextlib.suppress(queue.Empty):
                reply = self.replies.get(timeout=POLL_S)
                if "error" in reply:
                    raise StageError(f"ONNX Runtime Web: {one_line(reply['error'])}")
                return reply
            waited += POLL_S
            if self.process.poll() is not None:
                raise StageError(f"the browser ended with code {self.process.returncode}")
        raise StageError(f"the page did not reply within {timeout_s:g} s")

    def close(self) -> None:
        """Stop the browser and the server."""
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.server.shutdown()
        self.server.server_close()
        self.profile.cleanup()


class _Handler(BaseHTTPRequestHandler):
    browser: Browser

    def do_GET(self) -> None:
        """Serve the page, the runtime, the model, an input or the next request."""
        path = unquote(urlsplit(self.path).path)
        if path == "/next":
            with contextlib.suppress(queue.Empty):
                return self._send(json.dumps(self.browser.requests.get(timeout=20)).encode(), "application/json")
            return self._send(b"null", "application/json")
        if path.startswith("/input/"):
            return self._send(self.browser.arrays[path.removeprefix("/input/")].tobytes(), "application/octet-stream")
        file = self.browser.files.get(path)
        if match := re.fullmatch(r"/ort/([\w.-]+)", path):
            file = self.browser.dist / match[1]
        if file is None or not file.is_file():
            return self.send_error(404)
        return self._send(file.read_bytes(), MIME.get(file.suffix, "application/octet-stream"))

    def do_POST(self) -> None:
        """Receive an output, or the reply to the last request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/output":
            shape = [int(axis) for axis in query["dims"][0].split("x")] if "dims" in query else []
            self.browser.outputs[query["name"][0]] = np.frombuffer(body, query["type"][0]).reshape(shape)
        else:
            self.browser.replies.put(json.loads(body))
        self._send(b"", "text/plain")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        # These two allow shared memory, which the threads of WebAssembly need.
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the browser has ended
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class WebEngine(Engine):
    """A session in the page."""

    on_processor = False

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        self.backend = options["backend"]
        self.browser = Browser(options, model)
        atexit.register(self.browser.close)
        data = file.name if (file := _data_file(model)) else None
        request = {"do": "load", "model": model.name, "data": data, "threads": threads, "backend": self.backend}
        answer = self.browser.request(request)
        self.runtime = f"onnxruntime-web {answer['version']}"
        self.inputs, self.outputs = (
            [TensorInfo(v["name"], f"tensor({DTYPES.get(v['type'], v['type'])})", v["shape"]) for v in answer[side]]
            for side in ("inputs", "outputs")
        )

    def measure(
        self, feed: NamedArrays, at_least_ms: float = 0, calls: int | None = None, clock: str = "wall"
    ) -> tuple[list[float], list[Array]]:
        """Call and time the session in the page, by its own clock."""
        self.browser.arrays, self.browser.outputs = feed, {}
        inputs = [{"name": n, "type": a.dtype.name, "shape": list(a.shape)} for n, a in feed.items()]
        request = {"do": "run", "inputs": inputs, "at_least_ms": at_least_ms, "calls": calls}
        reply = self.browser.request(request)
        return reply["samples_ms"], [self.browser.outputs[port.name] for port in self.outputs]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Return one call, including the transfers to and from the page."""
        return lambda: self.measure(feed, 0)[1], lambda outputs: outputs

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the backend, the only one: with WebGPU, the session refuses to fall back to WebAssembly."""
        return {"asked": self.backend, "nodes": {self.backend: [["graph", ""]]}}

    def children_rss_bytes(self) -> int:
        """Return the memory of the browser's processes, with shared pages divided among them."""
        return int(sum_over_processes(self.browser.process.pid, lambda process: process.memory_full_info().pss))


load_engine = WebEngine


def _data_file(model: Path) -> Path | None:
    data = model.with_name(f"{model.name}.data")
    return data if data.exists() else None


def _remove_stale_profiles() -> None:
    """Remove the browser profiles of workers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PROFILE}*"):
        pid = folder.name.removeprefix(PROFILE).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
