"""Registered models by their addresses; MLflow is loaded where it is needed, which a bundle's file does not.

`RegisteredModel` is the object of the entry point `address.models`: what `gauntlet serve models:/NAME@ALIAS` serves.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import StageError

if TYPE_CHECKING:
    from wings.lifecycle.registry.bundle_cache import ResolvedBundle  # loads MLflow

POLL_S = 5.0


class RegisteredModel:
    """`models:/NAME@ALIAS` or `models:/NAME/VERSION` in MLflow's registry."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.loaded: ResolvedBundle | None = None
        self._looked = time.monotonic()

    @property
    def name(self) -> str:
        """The model's name in the registry; `ConfigError` when the address is malformed."""
        from wings.lifecycle.registry.bundle_cache import model_name

        return model_name(self.source)

    def path(self) -> Path:
        """Return the bundle that the address names now; the server asks again whenever it loads the model."""
        from wings.lifecycle.registry.bundle_cache import resolve

        self.loaded = resolve(Home.find(), self.source)
        self._note_look()
        return self.loaded.folder

    def canary(self) -> tuple[Path, float] | None:
        """Return the bundle that answers a share of the requests, and the share, as `path` last found them."""
        return self.loaded.canary if self.loaded else None

    def age_s(self) -> float:
        """Return how many seconds ago the registry last told what the address names, or it was first asked."""
        return time.monotonic() - self._looked

    def _note_look(self) -> None:
        self._looked = time.monotonic()

    def follow(self, name: str | None, load: Callable[[str], None]) -> None:
        """Call `load` for every bundle that the alias comes to name, as long as this process lives."""
        from wings.lifecycle.registry.bundle_cache import follow

        if name is None:
            assert self.loaded is not None
            name = Bundle.open(self.loaded.folder).contract.name

        def serve(bundle: "ResolvedBundle") -> None:
            try:
                load(name)
            except OSError as error:
                raise StageError(f"version {bundle.version} is not served, the one before stays: {error}") from error

        options = {"poll_s": POLL_S, "known": self.loaded, "on_look": self._note_look}
        arguments = (Home.find(), self.source, serve, threading.Event())
        threading.Thread(target=follow, args=arguments, kwargs=options, daemon=True).start()


def named_bundle(home: Home, source: str) -> Bundle:
    """Open a bundle, or the champion of the registered model with this name, or `models:/NAME@ALIAS`.

    Raises:
        ConfigError: when there is neither.
        StageError: when the registry cannot be reached, or its files are damaged.
    """
    if Path(source).exists() or Path(source).suffix == ".zip" or ("/" in source and not source.startswith("models:")):
        return Bundle.open(Path(source))
    from wings.lifecycle.registry.bundle_cache import is_address, resolve

    return Bundle.open(resolve(home, source if is_address(source) else f"models:/{source}@champion").folder)
