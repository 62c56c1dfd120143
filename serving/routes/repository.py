"""The model repository extension: what can be served, load, and unload."""

from fastapi import APIRouter, Request, Response

from serving.body import received_message
from serving.errors import InvalidRequest
from serving.protocol import IndexEntry, IndexRequest, LoadRequest
from serving.repository import repository_of

router = APIRouter(prefix="/v2/repository", tags=["repository"])


@router.post("/index", openapi_extra={"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}})
async def index(request: Request) -> list[IndexEntry]:
    """Return every model that is served, or that lies in the operator's repository folder."""
    repository = repository_of(request)
    query = await received_message(request, repository.limits, IndexRequest)
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
    repository = repository_of(request)
    _require_nothing(await received_message(request, repository.limits, LoadRequest))
    await repository.load(name)
    return Response()


@router.post("/models/{name}/unload")
async def unload(request: Request, name: str) -> Response:
    """Stop serving a model once its admitted requests are done."""
    repository = repository_of(request)
    query = await received_message(request, repository.limits, LoadRequest)
    _require_nothing(LoadRequest(parameters={k: v for k, v in query.parameters.items() if k != "unload_dependents"}))
    await repository.unload(name)
    return Response()


def _require_nothing(query: LoadRequest) -> None:
    if query.parameters:
        name = next(iter(query.parameters))
        raise InvalidRequest(
            f"the parameter '{name[:80]}' is not supported: the operator alone names files and settings"
        )
