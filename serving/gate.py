"""The door of the server: who may ask, what is logged of each request, and how an error looks."""

import logging
import re
import secrets
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import InternalError, NotAllowed, Refusal
from serving.observations import Metrics
from serving.tokens import Tokens

log = logging.getLogger("gauntlet.serving.requests")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)  # servers do not agree on other characters in a header
OPEN = frozenset({"/", "/page.js", "/drawing.js", "/page.css", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no token: the page asks for it, and a prober has none."""
UNFRAMED = b"x-frame-options", b"DENY"
"""Header: no page of another origin leads clicks to the pages of this server."""
NOTES = "gauntlet"
"""Key of the scope under which the routes leave what the log says of a request."""


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tokens: Tokens | None = None) -> None:
        self.app, self.metrics, self._tokens = app, metrics, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, headers = perf_counter(), Headers(scope=scope)
        header = headers.get("x-request-id", "")
        request_id = header if REQUEST_ID.fullmatch(header) else secrets.token_hex(16)
        notes: dict[str, Any] = {"request_id": request_id}
        scope[NOTES] = notes
        status, started = 499, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                message["headers"] += [(b"x-request-id", request_id.encode()), UNFRAMED]
            await send(message)

        try:
            if client := self._check(scope["method"], scope["path"], headers):
                notes["client"] = client
        except Refusal as refusal:
            notes["error"] = str(refusal)
            await refusal_response(refusal)(scope, receive, send_with_id)
        else:
            try:
                await self.app(scope, receive, send_with_id)
            except Exception as error:
                log.exception("internal error", exc_info=error, extra={"request_id": request_id})
                if not started:
                    await refusal_response(internal_error(request_id))(scope, receive, send_with_id)
        self.metrics.responses.labels(str(status)).inc()
        if log.isEnabledFor(logging.INFO):
            seconds = perf_counter() - start
            fields = {"method": scope["method"], "path": scope["path"][:256], "status": status}
            log.info("request", extra={**fields, "milliseconds": round(1000 * seconds, 3), **notes})

    def _check(self, method: str, path: str, headers: Headers) -> str:
        """Return the client's name, if it has one.

        Raises:
            Refusal: unless the request has a token, or there is none and it comes from this machine's users.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise NotAllowed("pages of other origins may not use this server")
        if self._tokens is None:
            name = re.sub(r":\d*$", "", host).strip("[]")
            if name not in LOOPBACK:  # another name that resolves to this machine: DNS rebinding
                raise NotAllowed("without a token, this server is for http://127.0.0.1 and http://localhost alone")
        elif path not in OPEN:
            return self._tokens.require_right(headers.get("authorization", ""), method, path)
        return ""


def internal_error(request_id: str) -> InternalError:
    """Return what a client is told of a fault of ours."""
    return InternalError(f"internal error in request {request_id}")


def error_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in the protocol's form."""
    return Response(to_json({"error": text}), status, {"content-type": "application/json", **(headers or {})})


def refusal_response(refusal: Refusal) -> Response:
    """Return what the client of a refused request is told."""
    return error_response(refusal.status, str(refusal), refusal.headers)
