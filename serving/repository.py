"""The models of a server by name; loading one anew swaps it without losing a request."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from starlette.requests import Request

from gauntlet.bundle.bundle import MANIFEST, Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import PipelineError
from gauntlet.request_log.log_format import is_in_share
from serving.errors import LoadFailed, NotFound, NotReady
from serving.image_decoders import decoders
from serving.observations import Metrics
from serving.served_model import NAME, ServedModel
from serving.settings import Limits

log = logging.getLogger("gauntlet.serving")

State = Literal["READY", "LOADING", "UNAVAILABLE"]


@dataclass(frozen=True)
class Source:
    """Where a name's bundle comes from; an alias of a registry may name another one at each call."""

    path: Callable[[], Path]
    canary: Callable[[], tuple[Path, float] | None] = lambda: None
    """A bundle that answers a share of the requests instead, and the share; called after `path`."""
    age_s: Callable[[], float] = lambda: 0.0
    """Seconds since a registry last told what its alias names; 0 for a file."""


@dataclass(eq=False)
class Entry:
    """One name: where its bundle comes from, and what is served of it."""

    source: Source
    model: ServedModel | None = None
    canary: ServedModel | None = None
    share: float = 0.0
    """Of the requests that the canary answers, chosen by their ids."""
    state: State = "UNAVAILABLE"
    reason: str = "not loaded"
    awaited: bool = False
    """Whether the server is not ready without it; until it is loaded for the first time."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Repository:
    """Bundles named at the start, and those of a folder that the operator named; requests name no paths."""

    def __init__(
        self,
        metrics: Metrics,
        limits: Limits,
        *,
        folder: Path | None = None,
        opened: Callable[[Bundle], Predictor] = Predictor,
        embeds: bool = False,
    ) -> None:
        self.metrics, self.limits = metrics, limits
        self._folder, self._opened, self._embeds = folder, opened, embeds
        self._entries: dict[str, Entry] = {}

    def start(self, source: Source, name: str | None = None) -> ServedModel:
        """Load a model before the server starts; `LoadFailed` when it cannot, or another one has its name."""
        model = self._open(source, name)
        if model.name in self._entries:
            raise LoadFailed(f"two bundles are named {model.name!r}. Fix: serve each in a process of its own")
        entry = self._entries[model.name] = Entry(source, model, state="READY", reason="")
        entry.canary, entry.share = self._open_canary(entry, model.name)
        self.metrics.age.labels(model.name).set_function(source.age_s)
        self.metrics.loads.labels(model.name, "success").inc()
        return model

    def expect(self, source: Source, name: str) -> None:
        """Know a model that there is nothing of yet: the server is not ready until `load` has found a bundle."""
        self._entries[name] = Entry(source, reason="there is no bundle yet", awaited=True)
        self.metrics.age.labels(name).set_function(source.age_s)

    @property
    def ready(self) -> bool:
        """Whether there are models, and all that were loaded or are expected, and not unloaded since, can answer."""
        wanted = [entry for entry in self._entries.values() if entry.awaited or entry.state != "UNAVAILABLE"]
        return bool(wanted) and all(entry.model for entry in wanted)

    def entries(self) -> dict[str, Entry]:
        """Return all models by name, those in the folder that were not loaded too."""
        for name, path in self._found():
            self._entries.setdefault(name, Entry(Source(partial(Path, path))))
        return dict(sorted(self._entries.items()))

    def model(self, name: str, version: str | None = None, request_id: str = "") -> ServedModel:
        """Return a model that is ready; without a version, the canary for a share of the request ids.

        Raises:
            NotFound: for an unknown name or version.
            NotReady: for a model that is not loaded.
        """
        entry = self._entries.get(name) or self.entries().get(name)
        if entry is None:
            raise NotFound(f"there is no model '{name[:128]}'; there are: {', '.join(self._entries) or 'none'}")
        if entry.model is None:
            raise NotReady(f"model '{name}' is not loaded: {entry.reason}")
        if (canary := entry.canary) and (
            version == canary.version
            or (version is None and request_id and is_in_share(request_id, entry.share, "canary"))
        ):
            return canary
        if version is not None and version != entry.model.version:
            raise NotFound(f"model '{name}' has no version '{version[:128]}'; it has {entry.model.version}")
        return entry.model

    @asynccontextmanager
    async def use(self, name: str, version: str | None, request_id: str) -> AsyncIterator[ServedModel]:
        """Yield a model that stays open until the caller is done, also when another version replaces it meanwhile."""
        model = self.model(name, version, request_id)
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1

    async def load(self, name: str) -> ServedModel:
        """Open a model's bundle anew, and swap it in once it is proven; a failure keeps the old one.

        Its canary changes, or ends, in either case.

        Raises:
            NotFound: for an unknown name.
            LoadFailed: with the reason.
        """
        entry = self.entries().get(name)
        if entry is None:
            raise NotFound(f"there is no model '{name[:128]}' in the repository")
        async with entry.lock:
            if entry.model is None:
                entry.state, entry.reason = "LOADING", ""
            try:
                model = await asyncio.to_thread(self._open, entry.source, name)
            except Exception as error:  # also a fault of ours: a model that is loading for ever is not ready
                self.metrics.loads.labels(name, "failure").inc()
                entry.reason = str(error)
                entry.state = "READY" if entry.model else "UNAVAILABLE"
                await self._change_canary(entry, name)
                raise
            old, entry.model, entry.state, entry.reason = entry.model, model, "READY", ""
            entry.awaited = False
            self.metrics.loads.labels(name, "success").inc()
            await self._change_canary(entry, name)
        log.info("loaded", extra={"model": name, "version": model.version, "canary": entry.share})
        await _retire(old)
        return model

    async def unload(self, name: str) -> None:
        """Stop serving a model once its admitted requests are done; `NotFound` for an unknown name."""
        entry = self.entries().get(name)
        if entry is None:
            raise NotFound(f"there is no model '{name[:128]}' in the repository")
        async with entry.lock:
            old, entry.model, entry.state, entry.reason = entry.model, None, "UNAVAILABLE", "unloaded"
            before, entry.canary = entry.canary, None
        await _retire(old)
        await _retire(before)

    async def close(self) -> None:
        """Finish what was admitted."""
        for entry in self._entries.values():
            await _retire(entry.model)
            await _retire(entry.canary)

    def _open(self, source: Source, name: str | None) -> ServedModel:
        try:
            path = source.path()
        except PipelineError as error:
            raise LoadFailed(str(error)) from error
        model = ServedModel.load(path, self.metrics, self.limits, name=name, opened=self._opened, embeds=self._embeds)
        if model.takes_images:
            decoders.start()
        if line := model.predictor.not_as_raced:
            log.warning("not served as it was raced", extra={"model": model.name, "reason": line})
        if model.no_embedding:
            log.warning("the request log has no embeddings", extra={"model": model.name, "reason": model.no_embedding})
        if model.apart:
            log.warning("requests are not joined: rows of a call change each other", extra={"model": model.name})
        return model

    async def _change_canary(self, entry: Entry, name: str) -> None:
        before = entry.canary
        entry.canary, entry.share = await asyncio.to_thread(self._open_canary, entry, name)
        if before is not entry.canary:
            await _retire(before)

    def _open_canary(self, entry: Entry, name: str) -> tuple[ServedModel | None, float]:
        """Return the canary and its share; one that cannot be served answers nothing."""
        if (canary := entry.source.canary()) is None:
            return None, 0.0
        path, share = canary
        try:
            if entry.canary and entry.canary.digest == Bundle.open(path).digest:
                return entry.canary, share
            return self._open(Source(lambda: path), name), share
        except (PipelineError, LoadFailed) as error:
            log.warning("the canary is not served", extra={"model": name, "reason": str(error)})
            return None, 0.0

    def _found(self) -> Iterator[tuple[str, Path]]:
        """Yield the bundles in the folder by name, which is that of the folder or the `.zip`."""
        if self._folder is None or not self._folder.is_dir():  # it may be gone since the start
            return
        for path in sorted(self._folder.iterdir()):
            name = path.stem if path.suffix == ".zip" else path.name
            if NAME.fullmatch(name) and (path.suffix == ".zip" or (path / MANIFEST).is_file()):
                yield name, path


async def _retire(model: ServedModel | None) -> None:
    """Close a version after its last request."""
    if model is None:
        return
    while model.users:
        await asyncio.sleep(0.005)
    await asyncio.to_thread(model.batcher.close)


def repository_of(request: Request) -> Repository:
    """Return the models of the server that a request came to."""
    repository: Repository = request.app.state.repository
    return repository
