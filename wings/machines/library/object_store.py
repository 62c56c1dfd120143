"""Artifacts in an object store that machines share: S3, Google Cloud, Azure, or a folder that all of them mount.

Its objects are `store/` (artifacts, as in the folder), `results/`, `runs/` and `leases/`. Credentials come from the
environment, under the names that the provider's own tools use, and stand in no record.
"""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field

from gauntlet.core.artifact import STORE_ADDRESS, Artifact, Store, sha256_of
from gauntlet.core.errors import ConfigError, PipelineError, StageError, install_command
from gauntlet.core.frozen import Frozen
from wings.machines.library.object_store_client import PAUSE_S, Result, connect, patiently, permanent_fault

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

log = logging.getLogger("gauntlet")

SCHEMES = ("s3", "gs", "az", "file", "memory")
FIRST_PATIENCE_S = 30.0
"""How long the server is waited for at the start of a run, when its address may simply be wrong."""
PART_BYTES = 8 << 20
MAX_PARTS = 9000
HEARTBEAT_S = 60.0
LIVE_S = 600.0
"""A lease that was not renewed for so long belongs to a process that was killed."""

_intact: set[tuple[str, int, int]] = set()
"""Files of this machine that this process has compared with their digests: path, size, time of change in ns."""


class MissingArtifact(StageError):  # noqa: N818 - a finding, as GateFailed is
    """An artifact is nowhere, or is damaged wherever it is."""


class SharedRun(Frozen):
    """What one run has used."""

    run_id: str
    host: str
    ended_at: str = Field(description="ISO 8601, UTC")
    results: tuple[str, ...] = Field(description="cache keys")
    artifacts: tuple[str, ...] = Field(description="paths in the store")


def open_object_store(folder: Path, address: str) -> "ObjectStore":
    """Return the store at an address such as `s3://bucket/prefix`.

    Raises:
        ConfigError: for an address that is none, or that holds credentials, and without the package.
    """
    try:
        parts = urlsplit(address)
    except ValueError:  # one bracket
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"{STORE_ADDRESS}: an address must not hold credentials. Fix: set {parts.scheme}://BUCKET/PREFIX, and give "
            "the credentials in the provider's own variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme in ("file", "memory")):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"{STORE_ADDRESS}={address}: not the address of a store ({known}). Fix: s3://BUCKET/PREFIX")
    if find_spec("obstore") is None:
        raise ConfigError(f"{STORE_ADDRESS}={address}: needs obstore. Fix: {install_command('store')}")
    return ObjectStore(folder, address.rstrip("/"))


@dataclass(frozen=True)
class ObjectStore(Store):
    """The object store at `address`; `root` is the folder of what this machine has made or fetched.

    An object appears complete or not at all. Of an artifact with several files, the main one is written last, so that
    an artifact whose main file is there is whole.
    """

    def put(self, file: Path, *companions: Path) -> Artifact:
        """Move the files into the folder, then copy them to the object store, unless it has them."""
        artifact = super().put(file, *companions)
        self._share(artifact)
        return artifact

    def path(self, artifact: Artifact) -> Path:
        """Return the local path of the artifact's main file, which is fetched where it is missing or damaged here.

        Raises:
            MissingArtifact: when the object store lacks it, or has it damaged; then it is removed there.
        """
        place = self.root / artifact.path
        if not (place.is_file() and _state(place) in _intact):
            if not self.is_intact_here(artifact):
                if place.exists():
                    log.warning("%s is damaged; fetching it again from %s", place, self.address)
                self._fetch(artifact)
            _intact.add(_state(place))
        return place

    def is_intact(self, artifact: Artifact) -> bool:
        """Return whether the artifact is in both places, whole, after fetching or sending it where necessary."""
        try:
            self.path(artifact)
            self._share(artifact)
        except MissingArtifact as error:
            log.warning("%s", error)
            return False
        return True

    def uri(self, artifact: Artifact) -> str:
        """Return the address of the artifact's main file."""
        return f"{self.address}/store/{artifact.path}"

    def publish(self, name: str, text: str, patience_s: float | None = None) -> None:
        """Write a small object; a reader sees the old content or the new one."""
        import obstore

        self._ask(lambda: obstore.put(self.client, name, text.encode()), patience_s)

    def published(self, name: str) -> bytes | None:
        """Return the content of a small object, or None."""
        import obstore

        with contextlib.suppress(FileNotFoundError):
            return self._ask(lambda: bytes(obstore.get(self.client, name).bytes()))
        return None

    def keep_for(self, run: str, results: Iterable[str], artifacts: Iterable[str]) -> None:
        """Publish what a run has used."""
        record = SharedRun(
            run_id=run,
            host=gethostname(),
            ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
            results=tuple(sorted(results)),
            artifacts=tuple(sorted(artifacts)),
        )
        try:
            self.publish(f"runs/{run}.json", record.model_dump_json())
        except PipelineError as error:
            log.warning("a clean-up may remove what this run has in %s: %s", self.address, error)

    def objects(self, prefix: str) -> "list[ObjectMeta]":
        """Return all objects below a path."""
        import obstore

        return self._ask(lambda: [*obstore.list(self.client, prefix).collect()])

    def delete(self, *paths: str) -> None:
        """Remove objects; those that are gone already are no error."""
        import obstore

        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: obstore.delete(self.client, paths))

    @property
    def client(self) -> "Client":
        """The connection of this process; `ConfigError` where the address or the environment allows none."""
        return connect(self.address)

    @contextmanager
    def in_use(self, run: str) -> Iterator[None]:
        """Hold a lease for a run, once no clean-up is at work on any machine."""
        with self.lease(f"run-{run}", FIRST_PATIENCE_S):
            if cleaning := self.leases("clean-"):
                log.info("waiting until the clean-up of %s has ended (%s)", self.address, cleaning[0])
            while self.leases("clean-"):
                time.sleep(PAUSE_S)
            yield

    @contextmanager
    def lease(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        """Hold a lease: `leases` has it until it is given back, or was not renewed for `LIVE_S`.

        Of two processes that first take a lease and then look at the leases of others, at least one sees the other's.
        """
        path, ended = f"leases/{name}", threading.Event()

        def renew() -> None:
            while not ended.wait(HEARTBEAT_S):
                with contextlib.suppress(PipelineError):
                    self.publish(path, "", HEARTBEAT_S)

        self.publish(path, "", patience_s)
        heartbeat = threading.Thread(target=renew, name=f"lease {name}", daemon=True)
        heartbeat.start()
        try:
            yield
        finally:
            ended.set()
            heartbeat.join(PAUSE_S)
            with contextlib.suppress(PipelineError):  # otherwise it expires
                self.delete(path)

    def leases(self, prefix: str) -> list[str]:
        """Return the names of the leases that are held, to a process that holds one itself: times are the server's."""
        times = {lease["path"].rpartition("/")[2]: lease["last_modified"] for lease in self.objects("leases")}
        now = max(times.values(), default=None)
        live = [name for name, at in times.items() if now and (now - at).total_seconds() < LIVE_S]
        return sorted(name for name in live if name.startswith(prefix))

    def _ask(self, do: Callable[[], Result], patience_s: float | None = None) -> Result:
        return patiently(self.address, do, patience_s)

    def _share(self, artifact: Artifact) -> None:
        """Send an artifact of the folder, unless the object store has all its files."""
        main, sizes = (
            self.root / artifact.path,
            {each["path"]: each["size"] for each in self.objects(_folder(artifact))},
        )
        files = {f"{_folder(artifact)}/{f.name}": f for f in (*(f for f in main.parent.iterdir() if f != main), main)}
        if any(sizes.get(name) != file.stat().st_size for name, file in files.items()):
            for name, file in files.items():
                self._upload(file, name)

    def _upload(self, file: Path, name: str) -> None:
        """Send a file in parts. It may replace one that another machine has just sent: they have the same content."""
        import obstore
        from obstore.exceptions import GenericError

        part = max(PART_BYTES, file.stat().st_size // MAX_PARTS)

        def send() -> None:
            try:
                obstore.put(self.client, name, file, chunk_size=part, max_concurrency=4)
            except FileNotFoundError as error:
                if permanent_fault(error) is not None:
                    raise
                raise GenericError("the server has lost the parts that it had") from error

        self._ask(send)

    def _fetch(self, artifact: Artifact) -> None:
        """Bring an artifact's files into the folder, and compare them with their digest first."""
        names = [file["path"] for file in self.objects(_folder(artifact))]
        if f"store/{artifact.path}" not in names:
            raise MissingArtifact(
                f"{artifact.path} is not in {self.root}, nor in {self.address}. "
                "Fix: run the same command again; what made it is repeated"
            )
        incoming = self._incoming()
        try:
            for name in names:
                self._download(name, incoming / name.rpartition("/")[2])
            sha = sha256_of(sorted(incoming.iterdir()))
            if sha != artifact.sha256:
                self.delete(*names)
                raise MissingArtifact(
                    f"{self.uri(artifact)} is damaged (SHA-256 {sha[:12]} instead of {artifact.sha256[:12]}) and was "
                    "removed. Fix: run the same command again; what made it is repeated"
                )
            self._accept(incoming, artifact)
        except FileNotFoundError as error:
            raise MissingArtifact(f"{self.uri(artifact)} was removed while it was fetched") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _download(self, name: str, file: Path) -> None:
        """Stream an object to a file, from its beginning whenever the server went away."""
        import obstore

        def stream() -> None:
            with file.open("wb") as output:
                for chunk in obstore.get(self.client, name).stream(PART_BYTES):
                    output.write(chunk)

        self._ask(stream)


def _folder(artifact: Artifact) -> str:
    """Return the path of the objects of an artifact."""
    return f"store/{artifact.path.rpartition('/')[0]}"


def _state(place: Path) -> tuple[str, int, int]:
    status = os.stat(place)  # noqa: PTH116 - called for every use of an artifact
    return str(place), status.st_size, status.st_mtime_ns
