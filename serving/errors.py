"""Refusals: each has a status, a reason for the metrics, and one sentence for the client."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class Refusal(Exception):  # noqa: N818 - most of them are the client's fault
    """Base class; the message is the `error` of the response."""

    status: ClassVar[int] = 400
    reason: ClassVar[str] = "invalid"
    headers: Mapping[str, str] = MappingProxyType({})


class InvalidRequest(Refusal):
    """The request does not follow the protocol or the model's signature."""


class NotAllowed(Refusal):
    """The host or the origin of a request is not the server's own."""

    status = 403


class NoToken(Refusal):
    """The request has no valid token."""

    status = 401
    headers = MappingProxyType({"www-authenticate": "Bearer"})


class NotFound(Refusal):
    """There is no such model, version or page."""

    status = 404


class ReadTimeout(Refusal):
    """The body did not arrive in time."""

    status = 408
    reason = "timeout"


class NotLogged(Refusal):
    """The server keeps no request log."""

    status = 409


class TooLarge(Refusal):
    """The body or an image is larger than allowed."""

    status = 413


class UnsupportedEncoding(Refusal):
    """The body is compressed."""

    status = 415


class ModelRejected(Refusal):
    """The runtime cannot run the model on these inputs, for example on an index outside a table."""

    status = 422
    reason = "model"


class Overloaded(Refusal):
    """The queue is full, or the outputs would come after the deadline."""

    status = 429
    reason = "rejected"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.headers = {"retry-after": str(max(1, math.ceil(retry_after_s)))}


class ClientGone(Refusal):
    """The client closed the connection; nobody reads the response."""

    status = 499
    reason = "canceled"


class InternalError(Refusal):
    """A fault of ours; the log has its traceback."""

    status = 500
    reason = "error"


class NotReady(Refusal):
    """The model is known, but not loaded."""

    status = 503
    reason = "not_ready"


class LoadFailed(Refusal):
    """A bundle cannot be served; the model that was served before it still is."""
