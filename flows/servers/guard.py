"""Who may call a server of this machine: its programs and its own pages, and where one is set, with a password.

Prefect takes a JSON body without a content type, which a browser sends for any page that its user visits, and responds
to any host name. MLflow takes what a page of any server on this machine sends.
"""

import secrets

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.servers.password import basic
from flows.servers.ports import HOST


class SameOrigin:
    """Refuses requests and web sockets that a browser sends for a page of another origin (RFC 6454)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what comes from a program, or from a page of this server."""
        if scope["type"] != "lifespan":
            headers = Headers(scope=scope)
            if headers.get("origin") not in (None, f"http://{headers.get('host')}"):
                await PlainTextResponse("a page of another origin may not call this server", 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class WithPassword:
    """Refuses requests without the account, of the form `name:password`, but for the address `/health`."""

    def __init__(self, app: ASGIApp, account: str) -> None:
        self.app, self._expected = app, basic(account)["Authorization"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what comes with the account; a browser asks its user for it."""
        if scope["type"] != "lifespan" and scope["path"] != "/health":
            given = Headers(scope=scope).get("authorization", "")
            if not secrets.compare_digest(given.encode(), self._expected):
                ask = {"WWW-Authenticate": 'Basic realm="gauntlet", charset="UTF-8"'}
                await PlainTextResponse("this server asks for a password", 401, ask)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def guarded(app: ASGIApp) -> ASGIApp:
    """Return an application that only this machine's programs, and its own pages, may call."""
    return TrustedHostMiddleware(SameOrigin(app), allowed_hosts=[HOST, "localhost"])
