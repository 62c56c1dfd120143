"""`infer` of the protocol, and `predict` for people: images in, labelled predictions out."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.open_inference import JSON_LENGTH_HEADER
from gauntlet.images.decoding import decode_image
from gauntlet.monitoring.request_log import FAILURES
from gauntlet.onnx_model.embedding_output import EMBEDDING
from serving.body import read_body, uploaded_files
from serving.errors import InvalidRequest, Refusal
from serving.gate import NOTES, send_refusal
from serving.infer_codec import InferCall, decode_request, encode_response
from serving.protocol import ErrorResponse, InferResponse, PredictResponse
from serving.repository import Repository
from serving.request_log import RequestLog
from serving.served_model import ServedModel

LARGE_JSON_BYTES = 1 << 16
"""Larger bodies are parsed in a thread, so that other requests are answered meanwhile."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "invalid request"},
    404: {"model": ErrorResponse, "description": "unknown model or version"},
    429: {"model": ErrorResponse, "description": "overloaded; see Retry-After"},
    503: {"model": ErrorResponse, "description": "the model is not loaded"},
}


class DirectRoute(APIRoute):
    """A route of FastAPI's, with its place in the API's page, whose function reads the request by itself.

    FastAPI's own handler looks for dependencies and validates what is returned, which takes a seventh of the time that
    a request spends outside the model.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what calls the function with the request and the parts of its path."""

        async def handle(request: Request) -> Response:
            response: Response = await self.endpoint(request=request, **request.path_params)
            return response

        return handle


router = APIRouter(prefix="/v2/models", tags=["inference"], route_class=DirectRoute)
decoders = ThreadPoolExecutor(2, thread_name_prefix="images")


def _body(*contents: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in contents}}}


TENSORS = _body(
    ("application/json", {"$ref": "#/components/schemas/InferRequest"}),
    ("application/octet-stream", {"type": "string", "format": "binary"}),
)
FILE = {"type": "string", "format": "binary"}
IMAGES = _body(
    ("image/*", FILE),
    ("multipart/form-data", {"type": "object", "properties": {"image": {"type": "array", "items": FILE}}}),
)


@router.post("/{name}/infer", response_model=InferResponse, responses=REFUSALS, openapi_extra=TENSORS)
@router.post(
    "/{name}/versions/{version}/infer", response_model=InferResponse, responses=REFUSALS, openapi_extra=TENSORS
)
async def infer(name: str, request: Request, version: str | None = None) -> Response:
    """Run the model on tensors, as JSON or with the binary extension."""
    arrived, repository = perf_counter(), _repository(request)
    async with repository.use(name, version) as model:
        with _observed_failures(request, model, arrived):
            model.batcher.require_room(arrived + repository.limits.deadline_ms / 1000)
            body = await read_body(request, repository.limits)
            call = await _decoded(body, request.headers.get(JSON_LENGTH_HEADER), model)
            rows = _rows(call.inputs, model, repository.limits.max_rows)
            outputs = await _computed(model, call.inputs, rows, request, arrived, call.deadline_s)
            embedding = outputs.pop(EMBEDDING, None)
            content, headers = encode_response(call, outputs, model.name, model.version)
        _succeeded(request, model, arrived, rows, call.inputs, outputs, embedding)
        return Response(content, headers=headers)


@router.post("/{name}/predict", response_model=PredictResponse, responses=REFUSALS, openapi_extra=IMAGES)
@router.post(
    "/{name}/versions/{version}/predict", response_model=PredictResponse, responses=REFUSALS, openapi_extra=IMAGES
)
async def predict(name: str, request: Request, version: str | None = None) -> Response:
    """Predict for one image, the body itself, or for several in a multipart form."""
    arrived, repository = perf_counter(), _repository(request)
    async with repository.use(name, version) as model:
        with _observed_failures(request, model, arrived):
            files = await _images(request, model, arrived)
            loop, most_pixels = asyncio.get_running_loop(), repository.limits.max_image_pixels
            images = await loop.run_in_executor(decoders, _decoded_images, model, files, most_pixels)
            calls, padding = await loop.run_in_executor(decoders, _image_inputs, model, images)
            sizes = [(image.shape[0], image.shape[1]) for image in images]
            parts = [
                await _computed(model, inputs, len(files) if model.max_batch else 1, request, arrived, None)
                for inputs in calls
            ]
            inputs, outputs = _joined(calls, padding), _joined(parts, padding)
            embedding = outputs.pop(EMBEDDING, None)
            predictions = [one.model_dump(mode="json") for one in model.predictor.decode(outputs, sizes)]
        _succeeded(request, model, arrived, len(files), inputs, outputs, embedding)
        milliseconds = round(1000 * (perf_counter() - arrived), 3)
        head = {"model_name": model.name, "model_version": model.version, "milliseconds": milliseconds}
        return Response(to_json({**head, "predictions": predictions}, inf_nan_mode="strings"), headers=JSON)


JSON = {"content-type": "application/json"}
INFER_PATH = re.compile(rf"{router.prefix}/([^/]+)(?:/versions/([^/]+))?/infer")


class InferPath:
    """ASGI middleware that calls `infer` at its path; FastAPI's way there takes as long as `infer` itself."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        found = INFER_PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        name, version = found.groups()
        scope["app"] = self.app
        try:
            response = await infer(name, Request(scope, receive), version)
        except Refusal as refusal:
            scope[NOTES]["error"] = str(refusal)
            await send_refusal(refusal, send)
        else:
            await response(scope, receive, send)


def _repository(request: Request) -> Repository:
    repository: Repository = request.app.state.repository
    return repository


async def _decoded(body: bytes, json_length: str | None, model: ServedModel) -> InferCall:
    if json_length is None and len(body) > LARGE_JSON_BYTES:
        return await asyncio.to_thread(decode_request, body, json_length, model.signature)
    return decode_request(body, json_length, model.signature)


def _rows(inputs: NamedArrays, model: ServedModel, most: int) -> int:
    """Return the number of samples, which all inputs must share."""
    if not model.max_batch:
        return 1
    counts = {len(array) for array in inputs.values()}
    if len(counts) > 1:
        raise InvalidRequest(f"the inputs have different numbers of rows: {sorted(counts)}")
    (rows,) = counts
    if rows > most:
        raise InvalidRequest(f"{rows} rows; at most {most} are allowed in a request")
    return rows


async def _computed(
    model: ServedModel, inputs: NamedArrays, rows: int, request: Request, arrived: float, deadline_s: float | None
) -> NamedArrays:
    """Return the outputs, or raise `Refusal`."""
    limit_s = _repository(request).limits.deadline_ms / 1000
    deadline = arrived + min(limit_s, limit_s if deadline_s is None else deadline_s)
    job = model.batcher.submit(inputs, rows, deadline, arrived)
    return await model.batcher.result(job, request.receive)


async def _images(request: Request, model: ServedModel, arrived: float) -> list[bytes]:
    """Return the image files of a request; refuse it before its body is read where that is possible."""
    if not model.takes_images:
        raise InvalidRequest(f"model '{model.name}' takes tensors, not images; use /v2/models/{model.name}/infer")
    limits = _repository(request).limits
    model.batcher.require_room(arrived + limits.deadline_ms / 1000)
    files = await uploaded_files(request, await read_body(request, limits), limits)
    if len(files) > limits.max_rows:
        raise InvalidRequest(f"{len(files)} images; at most {limits.max_rows} are allowed")
    return files


def _decoded_images(model: ServedModel, files: list[bytes], most_pixels: int) -> list[Array]:
    """Return the pixels of image files, in a thread, because decoding takes long."""
    how = model.signature.preprocessing
    channels = len(how.mean) if how else 3
    images: list[Array] = []
    for number, content in enumerate(files):
        try:
            images.append(decode_image(content, channels, most_pixels))
        except StageError as error:
            which = f"image {number}: " if len(files) > 1 else ""
            raise InvalidRequest(f"{which}{error}") from error
    return images


def _image_inputs(model: ServedModel, images: list[Array]) -> tuple[list[NamedArrays], int]:
    """Return the inputs of the calls for images."""
    try:
        return model.image_inputs(images)
    except StageError as error:
        raise InvalidRequest(str(error)) from error


def _joined(parts: list[NamedArrays], padding: int) -> NamedArrays:
    """Return the arrays of several calls as one each, without the padding of the last call."""
    joined = parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return {name: array[:-padding] for name, array in joined.items()} if padding else joined


def _succeeded(
    request: Request,
    model: ServedModel,
    arrived: float,
    rows: int,
    inputs: NamedArrays,
    outputs: NamedArrays,
    embedding: Array | None,
) -> None:
    seconds, notes = perf_counter() - arrived, request.scope[NOTES]
    model.observations.succeeded(seconds)
    notes.update(model=model.name, version=model.version, rows=rows)
    request_log: RequestLog | None = request.app.state.request_log
    if request_log is not None:
        request_log.add(notes["request_id"], model.version, model.signature, inputs, outputs, seconds, embedding)


@contextmanager
def _observed_failures(request: Request, model: ServedModel, arrived: float) -> Iterator[None]:
    """Count a request that fails inside, by its reason; log it where the reason is not the client's."""
    try:
        yield
    except Exception as error:
        reason, seconds = error.reason if isinstance(error, Refusal) else "error", perf_counter() - arrived
        model.observations.failed(reason, seconds)
        request_log: RequestLog | None = request.app.state.request_log
        if request_log is not None and reason in FAILURES:
            request_log.add_failure(request.scope[NOTES]["request_id"], model.version, reason, seconds)
        raise
