"""Netron, the graph viewer, on this machine's loopback.

Netron's own server gives away every file of the model's folder. Its page asks an internet service for the reader's
country, reports usage, and refuses to work when its release is half a year old. So this serves Netron's files and one
model, and nothing else, in the mode that Netron's developers use, in which the page does none of that.
"""

import re
import webbrowser
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from tasks.errors import ConfigError, StageError

LOOPBACK = "127.0.0.1"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
TYPES |= {".png": "image/png", ".ico": "image/x-icon", ".svg": "image/svg+xml"}
ALONE = "default-src 'self' blob: data:; style-src 'self' 'unsafe-inline'"
"""The browser itself keeps the page from asking anybody else."""


def show(model: Path, port: int | None) -> None:
    """Serve a model until Ctrl-C, and open the browser where there is one.

    Raises:
        ConfigError: when Netron is not installed.
        StageError: when the port is taken.
    """
    with server(model, port) as serving:
        url = f"http://{LOOPBACK}:{serving.server_address[1]}"
        print(f"Netron shows {model.name} at {url} until Ctrl-C", flush=True)  # noqa: T201
        webbrowser.open(url)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            return


def server(model: Path, port: int | None) -> ThreadingHTTPServer:
    """Return a server that is bound and does not serve yet; see `show`."""
    package = find_spec("netron")
    if package is None or package.origin is None:
        raise ConfigError("Netron is not installed; install it with: pip install 'onnx-gauntlet[netron]'")
    root = Path(package.origin).parent

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the page, one of Netron's files, or the model."""
            name = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
            host = self.headers.get("Host", "").rpartition(":")[0]
            content = _content(name, root, model) if host in (LOOPBACK, "localhost") else None
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", TYPES.get(Path(name).suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("Content-Security-Policy", ALONE)
            self.send_header("Set-Cookie", "consent=1; Path=/; SameSite=Strict")  # there is nothing to consent to
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            """Say nothing: a line a request is no news."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port or 0), Handler)
    except OSError as error:
        raise StageError(f"Netron cannot listen on port {port}: {error}") from error


def _content(name: str, root: Path, model: Path) -> bytes | None:
    if name == f"data/{model.name}":
        return model.read_bytes()
    file = (root / name).resolve()
    if file.suffix not in TYPES or file.parent != root.resolve() or not file.is_file():
        return None
    content = file.read_bytes()
    return _page(content.decode(), model.name).encode() if name == "index.html" else content


def _page(page: str, model: str) -> str:
    """Name the model in Netron's page, and call it a developer's version of today."""
    page = re.sub(r'<meta name="date" content="[^"]*">', "", page)
    own = '<meta name="type" content="Python"><meta name="version" content="0.0.0">'
    own += f'<meta name="file" content="data/{quote(model)}"><meta name="identifier" content="{escape(model)}">'
    return re.sub(r'<meta name="version" content="[^"]*">', lambda _: own, page)
