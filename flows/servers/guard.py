"""Who may call a server of this machine: its programs, and its own pages.

Prefect takes a JSON body without a content type, which a browser sends for any page that its user visits, and responds
to any host name. MLflow takes what a page of any server on this machine sends.
"""

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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


def guarded(app: ASGIApp) -> ASGIApp:
    """Return an application that only this machine's programs, and its own pages, may call."""
    return TrustedHostMiddleware(SameOrigin(app), allowed_hosts=[HOST, "localhost"])
