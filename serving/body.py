"""Receive the body of a request within the server's limits, and all bodies together within its memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from serving.errors import ClientGone, InvalidRequest, Overloaded, ReadTimeout, TooLarge, UnsupportedEncoding
from serving.infer_codec import first_error
from serving.settings import Limits

Message = TypeVar("Message", bound=BaseModel)

MULTIPART = "multipart/form-data"
MIN_MEMORY_BYTES = 512_000_000
"""For the bodies of all requests together; more where a single one may be larger."""
MAX_MESSAGE_MB = 1
"""Size of a body without inputs; the event loop parses it, in milliseconds."""


class HeldBodies:
    """Counts the bytes of bodies that the server holds, of requests in progress."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.held_bytes = max_bytes, 0

    @classmethod
    def of(cls, limits: Limits) -> "HeldBodies":
        """Return the count of a server with these limits."""
        return cls(max(MIN_MEMORY_BYTES, limits.max_body_bytes))

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes of a request, which are free when it ends; `Overloaded` when full."""
        mine = 0

        def count(size: int) -> None:
            nonlocal mine
            if self.held_bytes + size > self.max_bytes:
                raise Overloaded(f"requests in progress have {self.held_bytes / 1e6:.0f} MB already", 1)
            mine += size
            self.held_bytes += size

        try:
            yield count
        finally:
            self.held_bytes -= mine


@asynccontextmanager
async def received_body(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """Yield the body, which counts as held until the caller is done.

    Raises:
        Overloaded: when the bodies of all requests would take too much memory.
        TooLarge: above the limit; a declared length is refused before anything is read.
        ReadTimeout: when it does not arrive in time.
        UnsupportedEncoding: when it is compressed, which could hide any size.
        InvalidRequest: when it asks to change to another protocol.
        ClientGone: when the client closes the connection.
    """
    if request.headers.get("content-encoding", "identity") not in ("identity", ""):
        raise UnsupportedEncoding("compressed requests are not supported; send the body as it is")
    if "upgrade" in request.headers:  # its head came in parts, and uvicorn has lost its body
        fix = "Fix: ask in HTTP/1.1 alone (in Java: HttpClient.Version.HTTP_1_1)"
        raise InvalidRequest(f"this server changes to no other protocol than HTTP/1.1. {fix}")
    held: HeldBodies = request.app.state.bodies
    with held.request() as count:
        yield await _read(request, limits, count)


async def received_message(request: Request, limits: Limits, kind: type[Message]) -> Message:
    """Return a body without inputs, which may be left out; `InvalidRequest` for another kind, or as `received_body`."""
    small = limits.replace(max_body_mb=min(MAX_MESSAGE_MB, limits.max_body_mb))
    async with received_body(request, small) as body:
        try:
            return kind.model_validate_json(body or b"{}")
        except ValidationError as error:
            raise InvalidRequest(f"the request is not one of the protocol: {first_error(error)}") from error


async def _read(request: Request, limits: Limits, count: Callable[[int], None]) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:18]) > limits.max_body_bytes:
        raise _too_large(limits)
    chunks, size, more = [], 0, True
    try:
        async with asyncio.timeout(limits.read_timeout_s):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client closed the connection")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                count(len(chunks[-1]))
                if size > limits.max_body_bytes:
                    raise _too_large(limits)
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise ReadTimeout(f"the body did not arrive within {limits.read_timeout_s:g} s") from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def uploaded_files(request: Request, body: bytes, limits: Limits) -> list[bytes]:
    """Return the files of a multipart body, or the body itself, which is then one file; in a thread without a loop."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind.lower() != MULTIPART.encode():
        return [body]
    # Without the charset: texts are not used, and to decode those of some takes the square of their size.
    boundary = b'; boundary="%s"' % options[b"boundary"] if b"boundary" in options else b""
    headers = Headers(raw=[(b"content-type", MULTIPART.encode() + boundary)])

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        headers, stream(), max_files=limits.max_rows, max_fields=16, max_part_size=limits.max_body_bytes
    )
    parser.spool_max_size = limits.max_body_bytes + 1  # nothing goes to the disk
    try:
        form = asyncio.run(parser.parse())
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"the multipart body cannot be read: {error}") from error
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    if not files:
        raise InvalidRequest("the multipart body has no file; send each image as a part with a filename")
    return [file.file.read() for file in files]


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"the body is larger than {limits.max_body_mb:g} MB")
