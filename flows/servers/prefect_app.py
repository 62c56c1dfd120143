"""Prefect's server as `local_servers` starts it: its socket as standard input.

Whoever may create a deployment's run may run a shell command, so `guarded` refuses pages and names of others.
"""

import gc
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import uvicorn
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.servers.guard import guarded
from flows.servers.local_servers import note_server
from flows.servers.ports import HOST
from gauntlet.__main__ import OBJECTS_OF_IMPORTS

PORT = "PREFECT_SERVER_API_PORT"


def take_turns() -> None:
    """Make writers of Prefect's SQLite file wait for one another.

    Prefect begins a transaction as a reader. One that then writes is refused at once ("database is locked") if another
    has written meanwhile, and its client tries again after seconds, at most six times: on a machine with three busy
    runs, `prefect deploy --all` took up to 77 s instead of 8 s, or failed. A writer from the start waits its turn.
    """
    from prefect.server.database import dependencies
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    class WritersInTurn(AioSqliteConfiguration):
        @asynccontextmanager
        async def begin_transaction(
            self, session: AsyncSession, with_for_update: bool = True
        ) -> AsyncGenerator[AsyncSessionTransaction]:
            async with super().begin_transaction(session, with_for_update=True) as transaction:
                yield transaction

    url = str(PREFECT_API_DATABASE_CONNECTION_URL.value())
    if url.startswith("sqlite"):
        dependencies.MODELS_DEPENDENCIES["database_config"] = WritersInTurn(url)


class LoginFirst:
    """Sends a browser that has no password to the login, which leads back: a run's page only says "Page not found".

    The login asks whether the server knows the browser. Without a password it gets the public settings, not a refusal:
    two messages that something went wrong would stay on every page.
    """

    SCRIPT = b"""<script>
localStorage.setItem("prefect-show-promotional-content", "false")
const known = () => localStorage.getItem("prefect-password"), begin = XMLHttpRequest.prototype.open
XMLHttpRequest.prototype.open = function (how, url) { begin.call(this, how, known() ? url : "/ui-settings", true) }
if (location.pathname != "/login" && !known())
  location.replace("/login?redirect=" + encodeURIComponent(location.pathname + location.search))
</script>"""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the script to each page."""

        async def send_page(message: Message) -> None:
            headers = MutableHeaders(raw=message["headers"]) if message["type"] == "http.response.start" else None
            if headers is not None and headers.get("content-type", "").startswith("text/html"):
                del headers["content-length"]
            elif b"<head>" in message.get("body", b""):
                message["body"] = message["body"].replace(b"<head>", b"<head>" + self.SCRIPT, 1)
            await send(message)

        is_page = scope["type"] == "http" and "text/html" in Headers(scope=scope).get("accept", "")
        if is_page:
            names = (b"accept-encoding", b"if-none-match", b"if-modified-since")
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] not in names]}
        await self.app(scope, receive, send_page if is_page else send)


def main() -> None:
    """Run the server until SIGTERM."""
    note, address = Path(os.environ["PREFECT_HOME"]) / "server.json", f"http://{HOST}:{os.environ[PORT]}/api"
    note_server(note, psutil.Process(), address)  # as its starter does, who may be killed before
    gc.set_threshold(OBJECTS_OF_IMPORTS)
    from prefect.server.api.server import create_app

    take_turns()
    config = uvicorn.Config(guarded(LoginFirst(create_app(final=True))), log_level="warning")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=0)])


if __name__ == "__main__":
    main()
