"""`infer` of the protocol, and `predict` for people: images in, labelled predictions out."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.ragged import joined
from gauntlet.request_log.log_format import EMBEDDING, FAILURES, logged_id
from serving.body import received_body, uploaded_files
from serving.errors import InvalidRequest, Refusal
from serving.gate import NOTES, refusal_response
from serving.image_decoders import PROCESSES, decoders
from serving.infer_codec import InferCall, decode_request, encode_response, json_values, require_json_fits
from serving.open_inference import JSON_LENGTH_HEADER
from serving.protocol import ErrorResponse, InferRequest, InferResponse, PredictResponse
from serving.repository import repository_of
from serving.request_log.writer import RequestLog
from serving.served_model import ServedModel
from serving.settings import Limits

LARGE_JSON_BYTES, LARGE_OUTPUT_VALUES = 1 << 16, 1 << 13
"""Larger JSON and texts are read, and more outputs written, in a thread: other requests are answered meanwhile."""
Value = TypeVar("Value")
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "invalid request"},
    404: {"model": ErrorResponse, "description": "unknown model or version"},
    429: {"model": ErrorResponse, "description": "overloaded; see Retry-After"},
    503: {"model": ErrorResponse, "description": "the model is not loaded"},
}


router = APIRouter(prefix="/v2/models", tags=["inference"])
decoding = ThreadPoolExecutor(PROCESSES, thread_name_prefix="images")
parsers = ThreadPoolExecutor(1, thread_name_prefix="json")
"""One at a time: parsed JSON takes many times its size."""


def _body(*contents: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in contents}}}


FILE = {"type": "string", "format": "binary"}
BINARY = _body(("application/octet-stream", FILE))
IMAGES = _body(
    ("image/*", FILE),
    ("multipart/form-data", {"type": "object", "properties": {"image": {"type": "array", "items": FILE}}}),
)


@router.post("/{name}/infer", responses=REFUSALS, openapi_extra=BINARY)
@router.post("/{name}/versions/{version}/infer", responses=REFUSALS, openapi_extra=BINARY)
async def infer(name: str, body: InferRequest, version: str | None = None) -> InferResponse:
    """Run the model on tensors, as JSON or with the binary extension."""
    raise NotImplementedError  # for the API's page alone: `Infer` takes the requests


async def _infer(request: Request, name: str, version: str | None = None) -> Response:
    repository = repository_of(request)
    async with repository.use(name, version, request.scope[NOTES]["request_id"]) as model, AsyncExitStack() as held:
        with _observed_failures(request, model, perf_counter()):
            body = await _received(request, model, held)
        arrived = perf_counter()  # now: the network and the client are not the service's
        with _observed_failures(request, model, arrived):
            max_rows = repository.limits.max_rows
            call = await _decoded(body, request.headers.get(JSON_LENGTH_HEADER), model, max_rows)
            rows = _rows(call.inputs, model, max_rows)
            outputs = await _computed(model, call.inputs, rows, request, arrived, call.deadline_s)
            embedding = outputs.pop(EMBEDDING, None)
            large = json_values(call, outputs) > LARGE_OUTPUT_VALUES
            content, headers = await _beside(large, encode_response, call, outputs, model.name, model.version)
        outputs = outputs if model.max_batch else _by_sample(outputs, model.fixed_batch)
        _succeeded(request, model, arrived, rows, call.inputs, outputs, embedding)
        return Response(content, headers=headers)


@router.post("/{name}/predict", response_model=PredictResponse, responses=REFUSALS, openapi_extra=IMAGES)
@router.post(
    "/{name}/versions/{version}/predict", response_model=PredictResponse, responses=REFUSALS, openapi_extra=IMAGES
)
async def predict(name: str, request: Request, version: str | None = None) -> Response:
    """Predict for one image, the body itself, or for several in a multipart form."""
    repository = repository_of(request)
    async with repository.use(name, version, request.scope[NOTES]["request_id"]) as model, AsyncExitStack() as held:
        with _observed_failures(request, model, perf_counter()):
            body = await _images(request, model, held)
        arrived = perf_counter()
        with _observed_failures(request, model, arrived):
            loop = asyncio.get_running_loop()
            decoded = loop.run_in_executor(decoding, _image_calls, model, request, body, repository.limits, arrived)
            calls, padding, sizes = await decoded
            size = len(sizes) if model.max_batch else model.fixed_batch
            parts = [
                await _computed(model, inputs, size - padding * (inputs is calls[-1]), request, arrived, None)
                for inputs in calls
            ]
            parts = parts if model.max_batch else [_by_sample(part, model.fixed_batch) for part in parts]
            inputs, outputs = _joined(calls, padding), _joined(parts, padding)
            embedding = outputs.pop(EMBEDDING, None)
            predictions = await loop.run_in_executor(decoding, _predictions, model, outputs, sizes)
        _succeeded(request, model, arrived, len(sizes), inputs, outputs, embedding)
        milliseconds = round(1000 * (perf_counter() - arrived), 3)
        head = {"model_name": model.name, "model_version": model.version, "milliseconds": milliseconds}
        return Response(to_json(head)[:-1] + b',"predictions":[' + predictions + b"]}", headers=JSON)


JSON = {"content-type": "application/json"}
INFER_PATHS = tuple(f"{router.prefix}/{{name}}{version}/infer" for version in ("", "/versions/{version}"))


class Infer:
    """The endpoint of `infer`, before FastAPI's routes: their way to a function takes as long as this one itself."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        scope["app"] = self.app
        request = Request(scope, receive)
        try:
            response = await _infer(request, **request.path_params)
        except Refusal as refusal:
            scope[NOTES]["error"] = str(refusal)
            response = refusal_response(refusal)
        await response(scope, receive, send)


async def _received(request: Request, model: ServedModel, held: AsyncExitStack) -> bytes:
    """Return the body, which is held until the request ends; refuse it before it is read where that is possible."""
    limits = repository_of(request).limits
    model.batcher.require_room(perf_counter() + limits.deadline_ms / 1000)
    return await held.enter_async_context(received_body(request, limits))


async def _decoded(body: bytes, json_length: str | None, model: ServedModel, max_rows: int) -> InferCall:
    size = require_json_fits(body, json_length, model.signature, max_rows)
    if any(spec.dtype == "str" for spec in model.signature.inputs):
        size = len(body)
    return await _beside(size > LARGE_JSON_BYTES, decode_request, body, json_length, model.signature)


async def _beside(large: bool, work: Callable[..., Value], *args: object) -> Value:
    """Do work, in a thread where it is large."""
    if large:
        return await asyncio.get_running_loop().run_in_executor(parsers, partial(work, *args))
    return work(*args)


def _rows(inputs: NamedArrays, model: ServedModel, most: int) -> int:
    """Return the number of samples, which all inputs must share."""
    if not model.max_batch:
        return model.fixed_batch
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
    limit_s = repository_of(request).limits.deadline_ms / 1000
    deadline = arrived + min(limit_s, limit_s if deadline_s is None else deadline_s)
    return await model.batcher.result(model.batcher.submit(inputs, rows, deadline, arrived), request.receive)


async def _images(request: Request, model: ServedModel, held: AsyncExitStack) -> bytes:
    """Return the body of a request with images; refuse it before its body is read where that is possible."""
    if not model.takes_images:
        raise InvalidRequest(f"model '{model.name}' takes tensors, not images; use /v2/models/{model.name}/infer")
    return await _received(request, model, held)


def _image_calls(
    model: ServedModel, request: Request, body: bytes, limits: Limits, arrived: float
) -> tuple[list[NamedArrays], int, list[tuple[int, int]]]:
    """Return the inputs of the calls for the images of a body, the padding of the last one, and the images' sizes.

    Runs in a thread, because it takes long.
    """
    files, how = uploaded_files(request, body, limits), model.signature.preprocessing
    channels, deadline = len(how.mean) if how else 3, arrived + limits.deadline_ms / 1000
    images = decoders.decode(files, channels, limits.max_image_pixels, deadline)
    try:
        calls, padding = model.image_inputs(images, deadline)
    except StageError as error:
        raise InvalidRequest(str(error)) from error
    return calls, padding, [(image.shape[0], image.shape[1]) for image in images]


def _predictions(model: ServedModel, outputs: NamedArrays, sizes: list[tuple[int, int]]) -> bytes:
    """Return predictions as JSON, in a thread: masks and boxes of many images take seconds."""
    return b",".join(prediction.model_dump_json().encode() for prediction in model.predictor.decode(outputs, sizes))


def _by_sample(outputs: NamedArrays, rows: int) -> NamedArrays:
    """Return outputs of shape (n, ...): what a model of one sample a call returns without that axis is its whole."""
    return {name: array if array.shape[:1] == (rows,) else array[None] for name, array in outputs.items()}


def _joined(parts: list[NamedArrays], padding: int) -> NamedArrays:
    """Return the arrays of several calls as one each, without the padding of the last call."""
    whole = joined(parts)
    return {name: array[:-padding] for name, array in whole.items()} if padding else whole


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
        logged = logged_id(notes.get("client", ""), notes["request_id"])
        request_log.add(logged, model.version, model.signature, inputs, outputs, seconds, embedding)


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
            notes = request.scope[NOTES]
            logged = logged_id(notes.get("client", ""), notes["request_id"])
            request_log.add_failure(logged, model.version, reason, seconds)
        raise
