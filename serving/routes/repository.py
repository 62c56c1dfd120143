"""The model repository extension: what can be served, load, and unload."""

from typing import TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from serving.body import received_body
from serving.errors import InvalidRequest
from serving.infer_codec import first_error
from serving.protocol import IndexEntry, IndexRequest, LoadRequest
from serving.repository import repository_of

Asked = TypeVar("Asked", IndexRequest, LoadRequest)
router = APIRouter(prefix="/v2/repository", tags=["repository"])


@router.post("/index", openapi_extra={"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}})
async def index(request: Request) -> list[IndexEntry]:
    """Return every model that is served, or that lies in the operator's repository folder."""
    repository = repository_of(request)
    query = await _parsed(request, IndexRequest)
    entries = [
        IndexEntry(
            name=name, version=entry.model.version if entry.model else "", state=entry.state, reason=entry.reason
        )
        for name, entry in repository.entries().items()
    ]
    return [entry for entry in entries if entry.state == "READY" or not query.ready]


@router.post("/models/{name}/load")
async def load(request: Request, name: str) -> Response:
    """Load a model, or load it anew; the version that is served stays when the new one fails."""
    _require_nothing(await _parsed(request, LoadRequest))
    await repository_of(request).load(name)
    return Response()


@router.post("/models/{name}/unload")
async def unload(request: Request, name: str) -> Response:
    """Stop serving a model once its admitted requests are done."""
    query = await _parsed(request, LoadRequest)
    _require_nothing(LoadRequest(parameters={k: v for k, v in query.parameters.items() if k != "unload_dependents"}))
    await repository_of(request).unload(name)
    return Response()


async def _parsed(request: Request, kind: type[Asked]) -> Asked:
    async with received_body(request, repository_of(request).limits) as body:
        try:
            return kind.model_validate_json(body or b"{}")
        except ValidationError as error:
            raise InvalidRequest(f"the request is not one of the protocol: {first_error(error)}") from error


def _require_nothing(query: LoadRequest) -> None:
    if query.parameters:
        name = next(iter(query.parameters))
        raise InvalidRequest(
            f"the parameter '{name[:80]}' is not supported: the operator alone names files and settings"
        )
