"""Content-addressed files, and the store that holds them."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds, removed

STORE_ADDRESS = "GAUNTLET_STORE"
"""Environment variable: the address of the store that machines share."""


class Artifact(Frozen):
    """A file in a content-addressed store. A model with external data is one artifact."""

    name: str = Field(description="file name, for example model.onnx")
    sha256: str = Field(description="digest of the file; of the sorted list of files where there are several")
    size_bytes: int = Field(ge=0, description="size of all its files")
    path: str = Field(description="the file, relative to the store")


@dataclass(frozen=True)
class Store:
    """A folder of artifacts. Each appears complete or not at all: written elsewhere, flushed to disk, and renamed.

    `open_store` also opens one that machines share; the folder is then this machine's copy of what it has used.
    """

    root: Path
    address: str = ""
    """Of the shared store behind the folder; empty without one."""

    def put(self, file: Path, *companions: Path) -> Artifact:
        """Move `file`, and the `companions` that it refers to by name, into the store; names must be distinct."""
        files = [file, *companions]
        if len({f.name for f in files}) != len(files):
            raise StageError(f"{file.name}: two files of one artifact have the same name")
        digest, size = sha256_of(files), sum(f.stat().st_size for f in files)
        path = f"{digest[:2]}/{digest}-{file.name}/{file.name}"  # the same bytes may have two names
        artifact = Artifact(name=file.name, sha256=digest, size_bytes=size, path=path)
        if self.is_intact_here(artifact):
            for f in files:
                f.unlink()
            return artifact
        incoming = self._incoming()
        for f in files:
            shutil.move(f, incoming / f.name)
        self._accept(incoming, artifact)
        return artifact

    def path(self, artifact: Artifact) -> Path:
        """Return the path of the artifact's main file."""
        return self.root / artifact.path

    def holds(self, file: Path) -> bool:
        """Return whether a file with the same content is stored: then this home wrote it, or accepted it before."""
        if not file.is_file():
            return False
        digest = sha256_of([file])
        stored = (path for folder in self.root.glob(f"{digest[:2]}/{digest}-*") for path in folder.iterdir())
        return any(sha256_of([path]) == digest for path in stored)

    def is_intact(self, artifact: Artifact) -> bool:
        """Return whether the artifact is there and its content matches its digest."""
        return self.is_intact_here(artifact)

    def uri(self, artifact: Artifact) -> str:
        """Return the address at which other machines find the artifact; empty for a folder alone."""
        return ""

    def publish(self, name: str, text: str) -> None:
        """Give a small record to the machines that share the store; a folder alone has none."""

    def published(self, name: str) -> bytes | None:
        """Return the record that a machine has published under a name; None where there is none."""
        return None

    def keep_for(self, run: str, results: Iterable[str], artifacts: Iterable[str]) -> None:
        """Keep what a run has used, by cache key and by path, from the clean-ups of machines that share the store."""

    @contextmanager
    def in_use(self, run: str) -> Iterator[None]:
        """Keep clean-ups of other machines from removing anything meanwhile; a folder's home has a lock for that."""
        yield

    def is_intact_here(self, artifact: Artifact) -> bool:
        """Return `is_intact` of the copy in the folder."""
        path = self.root / artifact.path
        return path.is_file() and sha256_of([f for f in path.parent.iterdir() if f.is_file()]) == artifact.sha256

    def _incoming(self) -> Path:
        """Return a new folder for the files of one artifact."""
        incoming = self.root / "incoming" / uuid.uuid4().hex
        incoming.mkdir(parents=True)
        return incoming

    def _accept(self, incoming: Path, artifact: Artifact) -> None:
        """Make a folder with all files of an artifact the artifact's. An intact copy that is there already stays."""
        home = (self.root / artifact.path).parent
        for f in incoming.iterdir():
            fsync(f)
        fsync(incoming)
        home.parent.mkdir(parents=True, exist_ok=True)
        try:
            incoming.rename(home)
        except OSError:  # a copy is there: another process stored it first, or it is damaged
            if not self.is_intact_here(artifact):
                _replace_files(home, incoming)
            shutil.rmtree(incoming)
        fsync(home.parent)


def open_store(folder: Path, address: str) -> Store:
    """Return the store in a folder or, with an address such as `s3://bucket/prefix`, the shared one behind it.

    Raises:
        ConfigError: when the address is invalid, or nothing is installed that knows shared stores.
    """
    if not address:
        return Store(folder)
    for open_shared in kinds("store").values():
        shared: Store = open_shared(folder, address)
        return shared
    raise ConfigError(f"{STORE_ADDRESS}={address}: nothing is installed that opens it. {removed('store.*')}")


def _replace_files(folder: Path, incoming: Path) -> None:
    """Replace the files of a folder one by one: at no time does another process miss one that belongs there."""
    names = {f.name for f in incoming.iterdir()}
    for name in names:
        (incoming / name).replace(folder / name)
    for f in folder.iterdir():
        if f.is_file() and f.name not in names:
            f.unlink(missing_ok=True)
    fsync(folder)


def sha256_of(files: list[Path]) -> str:
    """Return the SHA-256 of one file, or of the sorted `digest  name` lines of several."""
    if len(files) == 1:
        with files[0].open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    return hashlib.sha256("".join(sorted(f"{sha256_of([f])}  {f.name}\n" for f in files)).encode()).hexdigest()


def fsync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text file so that a reader sees the old content or the new one, never a part; `mode` less the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.touch(mode)
        temporary.write_text(text, encoding="utf-8")
        fsync(temporary)
        temporary.replace(path)
    finally:  # where the disk is full, what was written of it takes no space
        temporary.unlink(missing_ok=True)
