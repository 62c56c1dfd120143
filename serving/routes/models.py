"""Health, metadata, configuration and statistics of the protocol; some clients stop without the configuration."""

from importlib.metadata import version as installed_version
from typing import Any

from fastapi import APIRouter, Request, Response

from gauntlet.core.signature import TensorSpec
from serving.errors import NotReady
from serving.open_inference import DATATYPES
from serving.protocol import ModelMetadata, ServerMetadata, TensorMetadata
from serving.repository import repository_of
from serving.served_model import ServedModel

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


PLATFORM = "onnxruntime_onnx"


def metadata(model: ServedModel) -> ModelMetadata:
    """Return the inputs and outputs of a model."""
    contract = model.predictor.contract
    return ModelMetadata(
        name=model.name,
        versions=[model.version],
        platform=PLATFORM,
        inputs=[_tensor(spec) for spec in model.signature.inputs],
        outputs=[_tensor(spec) for spec in model.signature.outputs],
        parameters={
            "digest": model.digest,
            "run_id": contract.run_id,
            "candidate": contract.candidate,
            "task": model.signature.task,
            "takes_images": model.takes_images,
            "max_batch": model.max_batch,
        },
    )


def configuration(model: ServedModel, max_rows: int) -> dict[str, Any]:
    """Return a model's configuration in Triton's form; `max_rows` is what one request may have at most.

    Spec: Triton's model configuration extension; without a batch axis, `max_batch_size` is 0 and the dimensions are
    whole shapes.
    """
    first = 1 if model.max_batch else 0

    def dimensions(spec: TensorSpec) -> dict[str, Any]:
        kind = DATATYPES[spec.dtype]
        name = "STRING" if kind == "BYTES" else kind
        return {"name": spec.name, "data_type": f"TYPE_{name}", "dims": _shape(spec)[first:]}

    config: dict[str, Any] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "max_batch_size": max_rows if model.max_batch else 0,
        "input": [dimensions(spec) for spec in model.signature.inputs],
        "output": [dimensions(spec) for spec in model.signature.outputs],
    }
    if model.max_batch and not model.apart:
        config["dynamic_batching"] = {"preferred_batch_size": [model.max_batch], "max_queue_delay_microseconds": 0}
    return config


def _tensor(spec: TensorSpec) -> TensorMetadata:
    return TensorMetadata(name=spec.name, datatype=DATATYPES[spec.dtype], shape=_shape(spec))


def _shape(spec: TensorSpec) -> list[int]:
    return [axis if isinstance(axis, int) else -1 for axis in spec.shape]
