"""ONNX Runtime Web in headless Chromium: a page asks this process what to do, and is timed by its own clock."""

import atexit
import contextlib
import ctypes
import json
import os
import queue
import re
import shutil
import signal
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
from gauntlet.core.errors import StageError
from gauntlet.runtime.engines.base import Engine, TensorInfo

PAGE = Path(__file__).with_name("web_page.html")
SCRIPTS = {"wasm": "ort.wasm.min.mjs", "webgpu": "ort.webgpu.min.mjs"}
MIME = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}
SWITCHES = (
    "--headless=new",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--enable-unsafe-webgpu",
)
PROFILE = "gauntlet-web-"
START_S, POLL_S, LONGEST_S = 30.0, 0.5, 3600.0
DTYPES = {"float32": "float", "float64": "double"}


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return why not: no browser, or a browser without what the backend needs."""
    if shutil.which(options["browser"]) is None:
        return f"{options['browser']} is not on the PATH"
    try:
        with contextlib.closing(Browser(options)) as browser:
            found = browser.ask({"do": "look"}, START_S)
    except StageError as error:
        return str(error)
    if not found["isolated"]:
        return "the browser does not isolate the page, so there are no threads"
    if options["backend"] == "webgpu" and not found["adapter"]:
        return f"{options['browser']} has no WebGPU adapter: no GPU that it can use"
    if options["backend"] == "webgpu" and found["software"]:
        return f"{options['browser']} has no GPU: its WebGPU adapter is software ({found['adapter']})"
    return None


class Browser:
    """A browser with our one page, and the server on the loopback that the page talks to."""

    def __init__(self, options: dict[str, Any], model: Path | None = None) -> None:
        self.dist, self.model = Path(options["dist"]), model
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.arrays: NamedArrays = {}
        self.outputs: NamedArrays = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"browser": self}))
        self.server.daemon_threads = True
        _sweep()
        self.profile = tempfile.TemporaryDirectory(prefix=f"{PROFILE}{os.getpid()}-", ignore_cleanup_errors=True)
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # as root, the sandbox does not start
        url = f"http://127.0.0.1:{self.server.server_port}/?script={SCRIPTS[options['backend']]}"
        self.process = subprocess.Popen(
            (options["browser"], *SWITCHES, *root, f"--user-data-dir={self.profile.name}", url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # no thread of ours runs yet that the fork could catch with a lock
        )
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        try:
            self.answer(START_S)  # the page says that it is there
        except StageError:
            self.close()
            raise

    def ask(self, request: dict[str, Any], timeout_s: float = LONGEST_S) -> dict[str, Any]:
        """Let the page do something.

        Raises:
            StageError: when it fails, or the browser ends.
        """
        self.requests.put(request)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the page."""
        waited = 0.0
        while waited < timeout_s:
            with contextlib.suppress(queue.Empty):
                answer = self.answers.get(timeout=POLL_S)
                if "error" in answer:
                    raise StageError(f"ONNX Runtime Web: {' '.join(str(answer['error']).split())[:300]}")
                return answer
            waited += POLL_S
            if self.process.poll() is not None:
                raise StageError(f"the browser ended with code {self.process.returncode}")
        raise StageError(f"the page gave no answer within {timeout_s:g} s")

    def close(self) -> None:
        """End the browser and the server."""
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
        """Serve the page, the runtime, the model, an input, or the next request."""
        path = unquote(urlsplit(self.path).path)
        if path == "/next":
            with contextlib.suppress(queue.Empty):
                return self._send(json.dumps(self.browser.requests.get(timeout=20)).encode(), "application/json")
            return self._send(b"null", "application/json")
        if path.startswith("/input/"):
            return self._send(self.browser.arrays[path.removeprefix("/input/")].tobytes(), "application/octet-stream")
        model = self.browser.model
        files = {"/": PAGE} | ({f"/model/{model.name}": model} if model else {})
        if model is not None and (data := model.with_name(f"{model.name}.data")).exists():
            files[f"/model/{data.name}"] = data
        name = path.removeprefix("/ort/")
        if path.startswith("/ort/") and re.fullmatch(r"[\w.-]+", name):
            files[path] = self.browser.dist / name
        if path not in files or not files[path].is_file():
            return self.send_error(404)
        return self._send(files[path].read_bytes(), MIME.get(files[path].suffix, "application/octet-stream"))

    def do_POST(self) -> None:
        """Take an output, or the answer to the last request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/output":
            shape = [int(axis) for axis in query["dims"][0].split("x")] if "dims" in query else []
            self.browser.outputs[query["name"][0]] = np.frombuffer(body, query["type"][0]).reshape(shape)
        else:
            self.browser.answers.put(json.loads(body))
        self._send(b"", "text/plain")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        # With these two a page may have shared memory, which the threads of WebAssembly need.
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the browser has gone
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class WebEngine(Engine):
    """A session in the page."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        self.backend = options["backend"]
        self.browser = Browser(options, model)
        atexit.register(self.browser.close)
        data = f"{model.name}.data" if model.with_name(f"{model.name}.data").exists() else None
        request = {"do": "load", "model": model.name, "data": data, "threads": threads, "backend": self.backend}
        found = self.browser.ask(request)
        self.runtime = f"onnxruntime-web {found['version']}"
        self.inputs, self.outputs = (
            [TensorInfo(v["name"], f"tensor({DTYPES.get(v['type'], v['type'])})", v["shape"]) for v in found[side]]
            for side in ("inputs", "outputs")
        )

    def measure(self, feed: NamedArrays, at_least_ms: float) -> tuple[list[float], list[Array]]:
        """Let the page call and time the session."""
        self.browser.arrays, self.browser.outputs = feed, {}
        inputs = [{"name": n, "type": a.dtype.name, "shape": list(a.shape)} for n, a in feed.items()]
        answer = self.browser.ask({"do": "run", "inputs": inputs, "at_least_ms": at_least_ms})
        return answer["samples_ms"], [self.browser.outputs[port.name] for port in self.outputs]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Return one call, with the way into the page and out of it."""
        return lambda: self.measure(feed, 0)[1], lambda answer: answer

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the backend: WebAssembly has no other, and with WebGPU the session refuses to use another."""
        return {"asked": self.backend, "nodes": {self.backend: [["graph", ""]]}}

    def children_rss_bytes(self) -> int:
        """Return the memory of the browser's processes, shared pages divided among those that share them."""
        import psutil

        total = 0
        with contextlib.suppress(psutil.Error):
            browser = psutil.Process(self.browser.process.pid)
            for process in (browser, *browser.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().pss
        return total


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> WebEngine:
    """Load a model; `options` are those of the target."""
    return WebEngine(model, threads, options)


def _die_with_parent() -> None:
    """Let the system end the browser when this process is killed; Linux alone can (PR_SET_PDEATHSIG, prctl(2))."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _sweep() -> None:
    """Remove what browsers of workers that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PROFILE}*"):
        pid = folder.name.removeprefix(PROFILE).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
