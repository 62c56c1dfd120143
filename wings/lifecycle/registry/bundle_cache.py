"""Bundles of registered versions on this machine, by digest, and the addresses `models:/NAME@ALIAS` of them.

    resolve(home, "models:/digits@champion")  ->  a local folder, the same for the same digest

A server follows an alias with `follow`: it calls back with every bundle that the alias comes to point to.
"""

import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flows.record.home import Home
from flows.record.locks import locked
from flows.tracking.server import URI_VARIABLE, own_store, with_password
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, PipelineError, StageError
from wings.lifecycle.library.promotion.ledger import ALIASES, Ledger, checked_name, registry_address
from wings.lifecycle.registry.model_registry import ModelRegistry

log = logging.getLogger("gauntlet")

ADDRESS = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[\w-]+)|/(?P<version>\d+))")


class ResolvedBundle(NamedTuple):
    """A registered version on this machine."""

    name: str
    version: str
    digest: str
    folder: Path
    canary: tuple[Path, float] | None = None
    """The folder of a version that answers a share of the champion's requests, and the share."""


def is_address(text: str) -> bool:
    """Tell whether a text names a registered model rather than a file."""
    return text.startswith("models:")


def resolve(home: Home, address: str) -> ResolvedBundle:
    """Return the bundle that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names, downloaded where it is not here yet.

    Raises:
        ConfigError: when the address is malformed, or names nothing.
        StageError: when the registry cannot be reached, or its files are damaged.
    """
    parts = _parts(address)
    registry = registry_of(home, checked_name(parts["name"]))
    aliases: dict[str, str] = {} if parts["version"] else {str(a): digest for a, digest in registry.state().items()}
    digest = registry.digest_of(parts["version"]) if parts["version"] else aliases.get(parts["alias"])
    version = registry.find(digest) if digest else None
    if digest is None or version is None:
        raise ConfigError(
            f"{address}: no such version. Fix: promote one with: gauntlet promote RUN --name {parts['name']}; "
            f"aliases are {', '.join(ALIASES)}"
        )
    canary = _canary(home, registry) if parts["alias"] == "champion" else None
    return ResolvedBundle(parts["name"], version, digest, bundle_folder(home, registry, version, digest), canary)


def _canary(home: Home, registry: ModelRegistry) -> tuple[Path, float] | None:
    """Return the canary that runs; None where its bundle cannot be used: then the champion answers everything."""
    try:
        if (canary := registry.canary()) is None or (version := registry.find(canary[0])) is None:
            return None
        return bundle_folder(home, registry, version, canary[0]), canary[1]
    except PipelineError as error:
        log.warning("%s: no canary: %s", registry.name, error)
        return None


def model_name(address: str) -> str:
    """Return the name of the model in an address; `ConfigError` when it is malformed."""
    return checked_name(_parts(address)["name"])


def _parts(address: str) -> re.Match[str]:
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ConfigError(f"{address}: not an address of a model; write models:/NAME@ALIAS or models:/NAME/VERSION")
    return parts


def registry_of(home: Home, name: str) -> ModelRegistry:
    """Return a model's registry: where its ledger says, else where the environment says, else in the home."""
    known = registry_address(Ledger.of(home.root, name).entries())
    uri = os.environ.get(URI_VARIABLE) if known is None else known
    return ModelRegistry(home, with_password(home, own_store(home, uri or home.mlflow_uri)), name)


def bundle_folder(home: Home, registry: ModelRegistry, version: str, digest: str) -> Path:
    """Return the folder of a version's bundle in the home; its files are checked against its manifest.

    Raises:
        StageError: when the registry's files are not those that were registered.
    """
    folder = home.root / "bundles" / digest
    with locked(home.locks / f"bundle-{digest}"):
        if folder.exists() and not _problem(folder, digest):
            return folder
        incoming = home.root / "bundles" / f".{digest}.{uuid.uuid4().hex}"
        try:
            received = registry.download(version, incoming)
            if problem := _problem(received, digest):
                raise StageError(
                    f"{registry.name} version {version}: its files in the registry are damaged: {problem}. "
                    "Fix: restore the registry's artifacts, or promote the bundle again under another name"
                )
            shutil.rmtree(folder, ignore_errors=True)
            received.rename(folder)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    return folder


def _problem(folder: Path, digest: str) -> str | None:
    """Return why a folder is not the bundle with this digest, or None."""
    try:
        bundle = Bundle.open(folder)
    except ConfigError as error:
        return str(error)
    return "another bundle" if bundle.digest != digest else next(bundle.damage(), None)


def follow(
    home: Home,
    address: str,
    load: Callable[[ResolvedBundle], None],
    stop: threading.Event,
    *,
    poll_s: float = 10.0,
    known: ResolvedBundle | None = None,
    on_look: Callable[[], None] = lambda: None,
) -> None:
    """Call `load` with every bundle that an address comes to name, until `stop` is set.

    `known` is what is loaded already. A registry that cannot be reached is asked again `poll_s` seconds
    later, and so is one after any other error; a bundle that `load` refuses is not loaded until the alias moves again.
    What fails in the same way again is not logged again. `on_look` is called when the registry has told.
    """
    refused: ResolvedBundle | None = None
    warned = ""
    while not stop.wait(poll_s):
        try:
            bundle = resolve(home, address)
            on_look()
            if refused and bundle == known:  # the alias has moved back
                refused, warned = None, ""
            if bundle in (known, refused):
                continue
            refused = bundle
            load(bundle)
            known, refused, warned = bundle, None, ""
            log.info("%s is now version %s (%s)", address, bundle.version, bundle.digest[:12])
        except Exception as error:  # whatever it is, a server that stops to follow serves what was rolled back
            if not isinstance(error, PipelineError):
                refused = None
            if str(error) != warned:
                log.warning("%s: %s", address, error)
            warned = str(error)
