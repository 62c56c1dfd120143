"""The ASGI application: run until it is told to stop; what was admitted is finished."""

import gc
import ipaddress
import json
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic import Field, InstanceOf
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.raced_session import execution_provider
from gauntlet.core.errors import ConfigError, GateFailed, PipelineError
from gauntlet.core.frozen import Frozen
from serving.body import HeldBodies
from serving.errors import LoadFailed, Refusal
from serving.gate import LOOPBACK, NOTES, Gate, error_response, internal_error, refusal_response
from serving.http_protocol import JoiningProtocol
from serving.observations import Metrics
from serving.repository import Repository, Source
from serving.request_log.writer import RequestLog, RequestLogConfig
from serving.routes import feedback, inference, models, pages, repository
from serving.served_model import ServedModel
from serving.settings import Limits
from serving.tokens import Tokens

log = logging.getLogger("gauntlet.serving")

SWITCH_S = 0.0005
"""Longest wait of a call that has ended for Python's interpreter lock; the default of 5 ms would delay the next call as
much while the event loop is busy."""


class ServerConfig(Frozen):
    """Where a server listens, who may use it, and its limits."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535, description="0 takes a free one")
    fd: int | None = Field(None, ge=0, description="of a socket that listens already, in place of host and port")
    tokens: InstanceOf[Tokens] | None = None
    tls: tuple[Path, Path] | None = Field(None, description="files of the certificate chain and of its key, in PEM")
    repository: Path | None = None
    threads: int | None = Field(None, ge=1)
    provider: str | None = None
    log_level: str = "info"
    stop_timeout_s: int = Field(30, ge=1)
    limits: Limits = Limits()
    request_log: RequestLogConfig | None = None


def serve(
    sources: Sequence[Source],
    config: ServerConfig,
    name: str | None,
    announce: Callable[[str], None],
    awaited: Source | None = None,
) -> None:
    """Load the models, listen, and return after SIGTERM, SIGINT or SIGHUP; `announce` gets the address when it listens.

    `awaited` is the source of a model with this name that is loaded later, when a client asks for it.

    Raises:
        ConfigError: when the address, the files for TLS, the provider or the folder of the request log cannot be used,
            or a bundle cannot be opened.
        StageError: when the runtime rejects a model, or a registry cannot be reached.
        GateFailed: when a bundle is not fit to be served.
    """
    inherited = None if config.fd is None else _inherited(config.fd)
    require_safe(config.tokens, inherited.getsockname()[0] if inherited else config.host)
    tls = _tls(config.tls)
    log_as_json(config.log_level)
    if config.provider:
        execution_provider(config.provider)
    start = perf_counter()
    listener = inherited or _listener(config)
    listener.setblocking(False)
    repository = _repository(config)
    models = _started(repository, sources, name)
    if awaited is not None and name is not None:
        repository.expect(awaited, name)
    request_log = RequestLog(config.request_log, repository.metrics.count_logged) if config.request_log else None
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(repository, config.tokens, request_log),
            http=JoiningProtocol,
            loop="uvloop",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing here depends on the client's address
            timeout_graceful_shutdown=config.stop_timeout_s,
            **tls,
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, server.handle_exit)  # uvicorn raises them again when it has stopped: exit 0, not 143
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what was loaded so far lives as long as the process
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.tls else "http"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    names = [model.name for model in models]
    log.info("serving", extra={"address": address, "models": names, "seconds": round(perf_counter() - start, 3)})
    announce(address)
    server.run(sockets=[listener])
    if request_log is not None:
        request_log.close()
    log.info("stopped")


def _started(repository: Repository, sources: Sequence[Source], name: str | None) -> list[ServedModel]:
    """Return the loaded models; where one cannot be, raise what `serve` does."""
    try:
        return [repository.start(source, name) for source in sources]
    except LoadFailed as error:
        if isinstance(error.__cause__, PipelineError):
            raise error.__cause__ from None
        raise GateFailed(str(error)) from error


def _repository(config: ServerConfig) -> Repository:
    opened = partial(Predictor, threads=config.threads, provider=config.provider)
    embeds = config.request_log is not None and config.request_log.keeps_embeddings
    return Repository(Metrics(), config.limits, folder=config.repository, opened=opened, embeds=embeds)


def require_safe(tokens: Tokens | None, host: str) -> None:
    """Raise `ConfigError` for a host that others can reach, unless there is a token."""
    if tokens is None and not _is_loopback(host):
        raise ConfigError(
            f"--host {host}: others can reach it, so a token is needed; allowed without one: 127.0.0.1, ::1, "
            "localhost. Fix: --token-file FILE, with a line that only your clients know, or the same in GAUNTLET_TOKEN"
        )


def _tls(files: tuple[Path, Path] | None) -> dict[str, Any]:
    """Return uvicorn's options for TLS; `ConfigError` for files that are no certificate and its key."""
    if files is None:
        return {}
    certificate, key = files
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(
            f"--tls-cert {certificate} --tls-key {key}: not a certificate and its key in PEM: {error}"
        ) from error
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK


def _listener(config: ServerConfig) -> socket.socket:
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        fix = "Fix: name a free address with --host and --port"
        raise ConfigError(f"--host {config.host} --port {config.port}: {error.strerror or error}. {fix}") from error


def _inherited(fd: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=fd)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"--fd {fd}: {error.strerror}; expected a TCP socket that listens") from error
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise ConfigError(f"--fd {fd}: expected a TCP socket that listens")
    return listener


STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record's time, level, message and extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in STANDARD and value is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_as_json(level: str) -> None:
    """Send all logs of this process to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)  # `Gate` logs requests


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
    return refusal_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer for an unknown address or method."""
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, str(error.detail), dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    """Respond after a fault of ours; the gate logs it."""
    return refusal_response(internal_error(request.scope[NOTES]["request_id"]))
