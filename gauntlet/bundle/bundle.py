"""Open and seal bundles; `manifest.json` lists every file with its digest."""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from gauntlet.bundle.contract import Contract
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import ConfigError, one_line
from gauntlet.core.frozen import Frozen, wrong_key
from gauntlet.datasets.golden import GoldenCase
from gauntlet.datasets.splits import NPZ_ERRORS, ZIP_ERRORS

MANIFEST = "manifest.json"
CONTRACT = "contract.json"
MODEL = "model.onnx"
GOLDEN = "golden.npz"
REPORT = "report.json"
BOUND = (REPORT, GOLDEN, CONTRACT)
"""Files that count only for the model that `PROVENANCE` names beside them."""
SIGNATURES = "signatures"
"""Folder of signatures: they sign the manifest, so the manifest cannot list them."""
MLFLOW_NOTE = "registered_model_meta"
"""MLflow adds this file to the folder of a registered model from which it loads; nothing of a bundle reads it."""
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
Value = TypeVar("Value", bound=Frozen)
MAKE = "make one with: gauntlet bundle RUN"
UNPACKED = "gauntlet-bundle-"
"""Begin of the names of temporary folders."""
LOCKED_WITHIN_S = 60
"""A younger folder may not be locked yet."""


class DamagedBundle(ConfigError):  # noqa: N818 - what it is, not what went wrong
    """A bundle, or what was one, that cannot be opened; the message names the file."""


class FileEntry(Frozen):
    """One file of a bundle."""

    sha256: str
    size_bytes: int = Field(ge=0)


class Manifest(Frozen):
    """Every file of a bundle by its path inside it, except the manifest itself and the signatures."""

    schema_version: Literal[1] = 1
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class Bundle:
    """An opened bundle; a `.zip` is unpacked into a folder that lives as long as this object."""

    folder: Path
    contract: Contract
    manifest: Manifest
    _unpacked: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path) -> "Bundle":
        """Open a folder or a `.zip`; the contents of its files are checked by `damage`.

        Raises:
            DamagedBundle: when a `.zip`, the manifest or the contract cannot be read.
            ConfigError: when it is no bundle.
        """
        unpacked = _unpack(path) if path.is_file() else None
        folder = Path(unpacked.name) if unpacked else path
        if not (folder / MANIFEST).is_file():
            problem = f"not a bundle: it has no {MANIFEST}" if path.exists() else "no such file or folder"
            kind = DamagedBundle if unpacked else ConfigError  # the name of a file in a .zip may be damaged
            raise kind(f"{path}: {problem}. Fix: {MAKE}")
        manifest, contract = _read(path, folder, MANIFEST, Manifest), _read(path, folder, CONTRACT, Contract)
        for name in manifest.files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ConfigError(f"{path}: {MANIFEST} names {name!r}, which is outside the bundle")
        return cls(folder, contract, manifest, unpacked)

    @property
    def model(self) -> Path:
        """The ONNX file; its external data is beside it."""
        return self.folder / MODEL

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, and so of everything that it lists."""
        return sha256_of([self.folder / MANIFEST])

    def damage(self) -> Iterator[str]:
        """Yield one line for each file that is missing, changed, not in the manifest, or evidence for another model."""
        if (self.folder / MANIFEST).read_text() != _manifest_text(self.manifest):
            yield f"{MANIFEST}: changed: it is not as it was written"
        for name, entry in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file():
                yield f"{name}: missing"
            elif path.stat().st_size != entry.size_bytes or sha256_of([path]) != entry.sha256:
                yield f"{name}: changed: its digest is not the one in {MANIFEST}"
        yield from (f"{name}: not in {MANIFEST}" for name in _files(self.folder) if name not in self.manifest.files)
        if REPORT in self.manifest.files:
            digests = {name: entry.sha256 for name, entry in self.manifest.files.items()}
            yield from unbound_evidence(self.folder, digests, (MODEL, *BOUND))

    def golden(self) -> GoldenCase:
        """Return real samples by input, and the outputs that the model had for them when it was packaged."""
        return self._golden("outputs")

    def source_golden(self) -> GoldenCase:
        """Return the same samples, and the outputs of the model that the run started from."""
        return self._golden("source")

    def _golden(self, outputs: str) -> GoldenCase:
        groups: dict[str, NamedArrays] = {"inputs": {}, outputs: {}}
        try:
            with open_arrays(self.folder / GOLDEN) as file:
                for key in file.files:
                    group, _, name = key.partition("/")
                    if group in groups:
                        groups[group][name] = file[key]
        except NPZ_ERRORS as error:
            raise DamagedBundle(f"{GOLDEN}: it cannot be read: {one_line(error)}") from error
        return GoldenCase(groups["inputs"], groups[outputs])


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open an `.npz` file of a bundle, whose arrays together are no larger than the file."""
    with np.load(path, allow_pickle=False) as file:
        if sum(info.file_size for info in file.zip.infolist()) > path.stat().st_size:  # compressed, or overlapping
            raise zipfile.BadZipFile("its arrays are larger than the file, those of a bundle are not compressed")
        yield file


def seal(folder: Path) -> Manifest:
    """Write the manifest of a folder with everything else in it; the same files have the same manifest."""
    files = {n: FileEntry(sha256=sha256_of([p]), size_bytes=p.stat().st_size) for n, p in _files(folder).items()}
    manifest = Manifest(files=files)
    (folder / MANIFEST).write_text(_manifest_text(manifest))
    return manifest


def archive(folder: Path, target: Any) -> None:
    """Write a sealed folder to a `.zip`, a path or a seekable file; it is the same for the same files."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_TIME)
            info.external_attr = 0o644 << 16
            with path.open("rb") as source, file.open(info, "w", force_zip64=True) as written:
                while chunk := source.read(1 << 20):
                    written.write(chunk)


def _manifest_text(manifest: Manifest) -> str:
    return json.dumps(manifest.model_dump(), indent=1, sort_keys=True) + "\n"


class _UnpackedFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder that is locked while it is used, so that what a killed process has left can be told."""

    def __init__(self) -> None:
        super().__init__(prefix=UNPACKED)
        lock = os.open(self.name, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        weakref.finalize(self, os.close, lock)


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{UNPACKED}*"):
        with suppress(OSError):  # in use, another user's, or gone meanwhile
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(lock).st_mtime > LOCKED_WITHIN_S:
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


def _unpack(path: Path) -> "tempfile.TemporaryDirectory[str]":
    _remove_abandoned()
    unpacked = _UnpackedFolder()
    try:
        with zipfile.ZipFile(path) as archived:
            if sum(info.file_size for info in archived.infolist()) > path.stat().st_size:  # before it fills a disk
                raise zipfile.BadZipFile("packed by another program: a bundle is not compressed")
            _require_listed(archived)
            archived.extractall(unpacked.name)
    except ZIP_ERRORS as error:
        unpacked.cleanup()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free space there, or set TMPDIR to another folder"
            raise ConfigError(
                f"{path}: cannot be unpacked into {unpacked.name}: the disk is full. Fix: {fix}"
            ) from error
        if path.suffix != ".zip":
            raise ConfigError(f"{path}: neither a folder nor a .zip file. Fix: {MAKE}") from error
        raise DamagedBundle(f"{path}: damaged, or not a .zip file: {error}. Fix: copy it again") from error
    return unpacked


def _require_listed(archived: zipfile.ZipFile) -> None:
    """Raise `BadZipFile` for an archive that has other files than its manifest lists, before they are written."""
    with suppress(KeyError, ValueError):  # whoever opens the bundle names a manifest that is missing or cannot be read
        listed = {MANIFEST, MLFLOW_NOTE, *Manifest.model_validate_json(archived.read(MANIFEST)).files}
        for info in archived.infolist():
            if not (info.is_dir() or info.filename in listed or info.filename.startswith(f"{SIGNATURES}/")):
                raise zipfile.BadZipFile(f"{MANIFEST} does not list {info.filename}")


def _read(path: Path, folder: Path, name: str, kind: type[Value]) -> Value:
    try:
        return kind.model_validate_json((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # pydantic's and Unicode's errors are ValueErrors
        raise DamagedBundle(f"{path}: {name} cannot be read{wrong_key(error)}. Fix: copy it again") from error


def _files(folder: Path) -> dict[str, Path]:
    """Return what a manifest lists. It lists links everywhere: who copies a bundle copies what they lead to."""
    paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_symlink() or p.is_file()}
    kept = (n for n, p in paths.items() if p.is_symlink() or not (n == MLFLOW_NOTE or n.startswith(f"{SIGNATURES}/")))
    return {name: paths[name] for name in sorted(kept) if name != MANIFEST}


PROVENANCE = "provenance/slsa.json"
"""The statement that binds the report to the model and to its golden data."""


def unbound_evidence(folder: Path, digests: Mapping[str, str], bound: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for each document about other files than the bundle's, and for what no document binds.

    `digests` are SHA-256 by the name of a file in the bundle. `PROVENANCE` has to name the files of `bound` that there
    are. Who rewrites all documents is not stopped by this; a signature is.
    """
    names: dict[str, set[str]] = {PROVENANCE: set()}
    for document in digests:
        if not (document == "bom.json" or document.startswith("provenance/")):
            continue
        try:
            described = [*_descriptors(json.loads((folder / document).read_bytes()))]
        except (OSError, ValueError, RecursionError):
            yield f"{document}: it cannot be read, so it is no evidence for the model"
            continue
        names[document] = {name for name, _ in described}
        for name, digest in described:
            if digests.get(name, digest) != digest:
                yield f"{document}: it is about another {name} than the one in the bundle"
    for name in bound:
        if name in digests and name not in names[PROVENANCE]:
            yield f"{name}: {PROVENANCE} does not say that it belongs to this report"


def _descriptors(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and SHA-256 of every file that an in-toto statement or a bill of materials names."""
    match value:
        case {"name": str(name), "digest": {"sha256": str(digest)}}:
            yield name, digest
        case {"bom-ref": str(name), "hashes": [{"content": str(digest)}]}:
            yield name, digest
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _descriptors(part)
