"""MLflow's server as `gauntlet up` starts it, by MLflow's entry points `mlflow.app`: for those who have the password.

Without one, any user of this machine could name a folder as the place of an experiment's files, and read the files of
the server's user. MLflow's own accounts would hash the password again for each of a run's hundreds of requests.
"""

import os
import secrets

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.servers.guard import guarded
from flows.servers.password import SERVER, basic


class WithPassword:
    """Refuses requests without the account, of the form `name:password`, but for the address `/health`."""

    def __init__(self, app: ASGIApp, account: str) -> None:
        self.app, self._expected = app, basic(account)["Authorization"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what comes with the account; a browser asks its user for it."""
        if scope["type"] != "lifespan" and scope["path"] != "/health":
            authorization = Headers(scope=scope).get("authorization", "")
            if not secrets.compare_digest(authorization.encode(), self._expected):
                ask = {"WWW-Authenticate": 'Basic realm="gauntlet", charset="UTF-8"'}
                await PlainTextResponse("this server asks for a password", 401, ask)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def create_app() -> ASGIApp:
    """Return MLflow's application for the password of the environment."""
    from mlflow.server.fastapi_app import app  # takes seconds; the command `mlflow server` imports this module, too

    return guarded(WithPassword(app, os.environ[SERVER]))
