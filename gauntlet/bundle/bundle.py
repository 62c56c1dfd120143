"""Open and seal bundles; `manifest.json` lists every file with its digest."""

import json
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field, ValidationError

from gauntlet.bundle.contract import Contract
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.golden import GoldenCase

MANIFEST = "manifest.json"
CONTRACT = "contract.json"
MODEL = "model.onnx"
GOLDEN = "golden.npz"
REPORT = "report.json"
SIGNATURES = "signatures"
"""Folder of signatures: they sign the manifest, so the manifest cannot list them."""
ZIP_TIME = (1980, 1, 1, 0, 0, 0)


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
        """Open a folder or a `.zip`; `ConfigError` when it is no bundle. Contents are checked by `damage`."""
        unpacked = None
        if path.is_file() and zipfile.is_zipfile(path):
            unpacked = tempfile.TemporaryDirectory(prefix="gauntlet-bundle-")
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked.name)
        folder = Path(unpacked.name) if unpacked else path
        if not (folder / MANIFEST).is_file():
            problem = "no such file or folder" if not path.exists() else f"not a bundle: it has no {MANIFEST}"
            raise ConfigError(f"{path}: {problem}. Fix: make one with: gauntlet bundle RUN")
        try:
            manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
            contract = Contract.model_validate_json((folder / CONTRACT).read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path}: {MANIFEST} or {CONTRACT} cannot be read: {error}") from error
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
        """Yield one line for each file that is missing, changed, or not in the manifest."""
        for name, entry in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file():
                yield f"{name}: missing"
            elif path.stat().st_size != entry.size_bytes or sha256_of([path]) != entry.sha256:
                yield f"{name}: changed: its digest is not the one in {MANIFEST}"
        yield from (f"{name}: not in {MANIFEST}" for name in _files(self.folder) if name not in self.manifest.files)

    def golden(self) -> GoldenCase:
        """Return real samples by input, and the outputs that the model had for them when it was packaged."""
        import numpy as np

        with np.load(self.folder / GOLDEN, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        groups: dict[str, dict[str, np.ndarray]] = {"inputs": {}, "outputs": {}}
        for key, array in arrays.items():
            group, _, name = key.partition("/")
            groups[group][name] = array
        return GoldenCase(groups["inputs"], groups["outputs"])


def seal(folder: Path) -> Manifest:
    """Write the manifest of a folder with everything else in it; the same files have the same manifest."""
    files = {
        name: FileEntry(sha256=sha256_of([folder / name]), size_bytes=(folder / name).stat().st_size)
        for name in _files(folder)
    }
    manifest = Manifest(files=files)
    (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(), indent=1, sort_keys=True) + "\n")
    return manifest


def archive(folder: Path, target: Path) -> None:
    """Write a sealed folder to a `.zip` that is the same, byte by byte, for the same files."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_TIME)
            info.external_attr = 0o644 << 16
            with path.open("rb") as source, file.open(info, "w", force_zip64=True) as written:
                while chunk := source.read(1 << 20):
                    written.write(chunk)


MLFLOW_NOTE = "registered_model_meta"
"""MLflow adds this file to the folder of a registered model from which it loads; nothing of a bundle reads it."""


def _files(folder: Path) -> list[str]:
    paths = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(p for p in paths if p not in (MANIFEST, MLFLOW_NOTE) and not p.startswith(f"{SIGNATURES}/"))
