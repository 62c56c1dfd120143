"""The ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from serving.body import HeldBodies
from serving.errors import Refusal
from serving.gate import NOTES, Gate, internal_error
from serving.repository import Repository
from serving.request_log.writer import RequestLog
from serving.routes import feedback, inference, models, pages, repository
from serving.tokens import Tokens

DESCRIPTION = """The Open Inference Protocol v2 (REST, with the binary tensor, model configuration, statistics and model
repository extensions), and `predict` for images. Try it on [the page](/)."""


def make_app(served: Repository, tokens: Tokens | None = None, request_log: RequestLog | None = None) -> Gate:
    """Return the application for the models of a repository."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await served.close()

    app = FastAPIOffline(
        redoc_url=None, title="onnx-gauntlet", version=version("onnx-gauntlet"), description=DESCRIPTION
    )
    app.state.repository, app.state.request_log = served, request_log
    app.state.bodies = HeldBodies.of(served.limits)
    for routes in (inference, feedback, models, repository, pages):
        app.include_router(routes.router)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _broken)
    hottest = [Route(path, inference.Infer(app)) for path in inference.INFER_PATHS]
    return Gate(Router(hottest, redirect_slashes=False, default=app, lifespan=lifespan), served.metrics, tokens)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    request.scope[NOTES]["error"] = str(error)
    return _error(error.status, str(error), error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer for an unknown address or method."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail), dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    """Respond after a fault of ours; the gate logs it."""
    fault = internal_error(request.scope[NOTES]["request_id"])
    return _error(fault.status, str(fault))


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json({"error": text}), status, {"content-type": "application/json", **(headers or {})})
