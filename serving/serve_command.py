"""`gauntlet serve`: answer requests with the model of a bundle, over HTTP."""

import argparse
import os
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from flows.cli.shared import existing_file, given_limits
from gauntlet.core.errors import ConfigError, PipelineError
from gauntlet.core.kinds import kinds
from serving.repository import Source
from serving.request_log.writer import RequestLogConfig
from serving.server import ServerConfig, serve
from serving.settings import Limits
from serving.tokens import Tokens

LOG_OPTIONS = ("share", "inputs", "max_mb")
TOKEN_VARIABLE = "GAUNTLET_TOKEN"  # for containers, whose secrets are often variables
LOAD_TIMEOUT_S = 600.0


def serve_bundles(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    if not options.bundles and not options.repository:
        raise ConfigError("nothing to serve: name a bundle, or a folder of bundles with --repository FOLDER")
    if options.name and len(options.bundles) != 1:
        raise ConfigError(f"--name {options.name}: it names one bundle, and {len(options.bundles)} are given")
    if options.repository and not Path(options.repository).is_dir():
        raise ConfigError(f"--repository {options.repository}: no such folder")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port}: allowed are 1 to 65535, and 0 for a free one")
    config = ServerConfig(
        host=options.host,
        port=options.port,
        fd=options.fd,
        tokens=_tokens(options.token_file),
        tls=_tls(options),
        repository=Path(options.repository) if options.repository else None,
        threads=options.threads,
        provider=options.provider,
        log_level=options.log_level,
        limits=given_limits(Limits, options),
        request_log=_request_log(options),
    )
    registered = {source: model for source in options.bundles if (model := _registered(source)) is not None}
    sources = [
        Source(m.path, m.canary, m.age_s) if (m := registered.get(name)) else Source(partial(Path, name))
        for name in options.bundles
    ]
    name, awaited, missing = options.name, None, ""
    if options.wait:
        model = _awaited(options, registered)
        name = name or model.name
        missing = _missing(model)
        awaited = sources.pop() if missing else None

    def listening(address: str) -> None:
        print(f"serving on {address}", flush=True)  # noqa: T201
        if missing:
            print(f"waiting for a version: {missing}", flush=True)  # noqa: T201
        for model in registered.values():
            model.follow(name, partial(_load, config, address))

    serve(sources, config, name, listening, awaited)
    return 0


class Registered(Protocol):
    """A model that an address names: what the object of an entry point `address.SCHEME` returns for `SCHEME:...`."""

    @property
    def name(self) -> str:
        """The model's name; `ConfigError` when the address is malformed."""

    def path(self) -> Path:
        """Return the bundle that the address names now; the server asks again whenever it loads the model."""

    def canary(self) -> tuple[Path, float] | None:
        """Return a bundle that answers a share of the requests instead, and the share, as `path` last found them."""

    def age_s(self) -> float:
        """Return how many seconds ago the registry last told what the address names."""

    def follow(self, name: str | None, load: Callable[[str], None]) -> None:
        """Call `load` with the model's name, by default the bundle's, for every bundle that the address comes to name.

        It returns at once. `load` raises OSError when the server cannot serve the bundle.
        """


def _registered(source: str) -> Registered | None:
    """Return the model that an address names; None for a file or a folder."""
    scheme, colon, _ = source.partition(":")
    kind: Callable[[str], Registered] | None = kinds("address").get(scheme) if colon else None
    return kind(source) if kind else None


def _missing(model: Registered) -> str:
    """Return why there is no bundle at the address now, or nothing."""
    try:
        model.path()
    except PipelineError as error:
        return str(error)
    return ""


def _awaited(options: argparse.Namespace, registered: Mapping[str, Registered]) -> Registered:
    """Return the one registered model that the server may wait for."""
    if len(options.bundles) != 1 or not registered:
        raise ConfigError("--wait: it needs one registered model, as models:/NAME@ALIAS, and no other bundle")
    return registered[options.bundles[0]]


def _request_log(options: argparse.Namespace) -> RequestLogConfig | None:
    """Return how requests are logged, None where they are not."""
    if options.request_log is None:
        if unused := [name for name in LOG_OPTIONS if getattr(options, f"log_{name}") is not None]:
            flag = f"--log-{unused[0].replace('_', '-')}"
            raise ConfigError(f"{flag}: there is no request log. Fix: name its folder with --request-log FOLDER")
        return None
    return given_limits(RequestLogConfig, options, "log_", folder=options.request_log)


def _tokens(name: str | None) -> Tokens | None:
    """Return the tokens in a file, else that of the environment, None where there is neither."""
    path = existing_file(name)
    text = None if path else os.environ.get(TOKEN_VARIABLE)
    if path:
        return Tokens.read(path)
    return None if text is None else Tokens(text, TOKEN_VARIABLE)


def _tls(options: argparse.Namespace) -> tuple[Path, Path] | None:
    """Return the files of the certificate and its key, which are given together."""
    certificate, key = existing_file(options.tls_cert), existing_file(options.tls_key)
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key: one is given. Fix: name the certificate and its key")
    return certificate, key


def _load(config: ServerConfig, address: str, name: str) -> None:
    """Let the server of this process load a model anew; OSError when it cannot."""
    request = urllib.request.Request(f"{address}/v2/repository/models/{quote(name)}/load", b"{}", method="POST")
    if config.tokens is not None:
        request.add_header("Authorization", f"Bearer {config.tokens.own}")
    context = None
    if config.tls is not None:
        context = ssl.create_default_context(cafile=config.tls[0])  # its own certificate, and no other
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    direct = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)  # no proxy gets the token
    urllib.request.build_opener(*direct).open(request, timeout=LOAD_TIMEOUT_S).close()
