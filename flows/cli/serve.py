"""`gauntlet serve`: answer requests with the model of a bundle, over HTTP."""

import argparse
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from flows.cli.shared import existing_file
from gauntlet.core.errors import ConfigError
from serving.server import ServerConfig, serve
from serving.settings import Limits


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
        token=_token(options.token_file),
        repository=Path(options.repository) if options.repository else None,
        threads=options.threads,
        log_level=options.log_level,
        limits=_limits(options),
    )
    sources = [partial(bundle_path, source) for source in options.bundles]
    serve(sources, config, options.name, lambda address: print(f"serving on {address}", flush=True))  # noqa: T201
    return 0


def bundle_path(source: str) -> Path:
    """Return the bundle that a command's argument names now; it is asked again at each load of the model."""
    if source.startswith("models:/"):
        raise ConfigError(f"{source}: a registry cannot be read here. Fix: name the folder or the .zip of a bundle")
    return Path(source)


def _limits(options: argparse.Namespace) -> Limits:
    given = {name: getattr(options, name) for name in Limits.model_fields}
    try:
        return Limits.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        flag = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise ConfigError(f"{flag} {first['input']}: {first['msg']}") from error


def _token(name: str | None) -> str | None:
    """Return the token in a file, None where none is named."""
    path = existing_file(name)
    if path is None:
        return None
    token = path.read_text().strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"--token-file {path}: a token has at least 16 printable ASCII characters. "
            "Fix: make one with: openssl rand -hex 32"
        )
    return token
