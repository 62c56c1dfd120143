"""Health, metadata, configuration and statistics of the protocol."""

from importlib.metadata import version as installed_version
from typing import Any

from fastapi import APIRouter, Request, Response

from serving.descriptions import configuration, metadata
from serving.errors import NotReady
from serving.protocol import ModelMetadata, ServerMetadata
from serving.repository import repository_of

EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]
router = APIRouter(prefix="/v2", tags=["models"])


@router.get("/health/live")
@router.head("/health/live", include_in_schema=False)
async def live() -> Response:
    """Answer while the process does."""
    return Response()


@router.get("/health/ready")
@router.head("/health/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """Answer 200 when every loaded model can answer, else 503."""
    if not repository_of(request).ready:
        raise NotReady("a model is being loaded, or there is no version of it yet")
    return Response()


@router.get("")
async def server() -> ServerMetadata:
    """Return the server's name, version and extensions."""
    return ServerMetadata(name="onnx-gauntlet", version=installed_version("onnx-gauntlet"), extensions=EXTENSIONS)


@router.get("/models/stats")
@router.get("/models/{name}/stats")
@router.get("/models/{name}/versions/{version}/stats")
async def statistics(request: Request, name: str | None = None, version: str | None = None) -> dict[str, Any]:
    """Return counts and times since the model was loaded."""
    repository = repository_of(request)
    if name is not None:
        models = [repository.model(name, version)]
    else:
        models = [entry.model for entry in repository.entries().values() if entry.model]
    return {"model_stats": [model.observations.statistics() for model in models]}


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}")
async def model_metadata(request: Request, name: str, version: str | None = None) -> ModelMetadata:
    """Return the inputs and outputs of a model."""
    return metadata(repository_of(request).model(name, version))


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready")
async def model_ready(request: Request, name: str, version: str | None = None) -> Response:
    """Answer 200 when the model can answer."""
    repository_of(request).model(name, version)
    return Response()


@router.get("/models/{name}/config")
@router.get("/models/{name}/versions/{version}/config")
async def model_configuration(request: Request, name: str, version: str | None = None) -> dict[str, Any]:
    """Return a model's configuration in Triton's form."""
    repository = repository_of(request)
    return configuration(repository.model(name, version), repository.limits.max_rows)
