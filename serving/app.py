"""The ASGI application."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from serving.errors import Refusal
from serving.gate import NOTES, Gate, internal_error
from serving.protocol import InferRequest
from serving.repository import Repository
from serving.request_log import RequestLog
from serving.routes import feedback, inference, models, pages, repository

DESCRIPTION = """The Open Inference Protocol v2 (REST, with the binary tensor, model configuration, statistics and model
repository extensions), and `predict` for images. Try it on [the page](/)."""


def make_app(served: Repository, token: str | None = None, request_log: RequestLog | None = None) -> Gate:
    """Return the application for the models of a repository."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await served.close()

    app = FastAPIOffline(
        redoc_url=None,
        title="onnx-gauntlet",
        version=version("onnx-gauntlet"),
        description=DESCRIPTION,
        lifespan=lifespan,
    )
    app.state.repository, app.state.request_log = served, request_log
    app.openapi = partial(_document, app, app.openapi)  # type: ignore[method-assign]
    for routes in (inference, feedback, models, repository, pages):  # the hottest first
        app.include_router(routes.router)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _broken)
    return Gate(inference.InferPath(app), served.metrics, token)


def _document(app: FastAPI, generate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the OpenAPI document with the classes of `infer`'s body, which the route reads by itself."""
    if app.openapi_schema is None:
        document = generate()
        body = InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = body.pop("$defs")
        document["components"]["schemas"] |= {**parts, "InferRequest": body}
        app.openapi_schema = document
    return app.openapi_schema


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
