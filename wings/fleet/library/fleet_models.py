"""The models of a folder, and the configuration of a run of each."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from configs.brought_model import infer_config
from configs.frameworks import suffixes as model_suffixes
from configs.loader import given_libraries, load, validated
from configs.schema import PipelineConfig
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import ConfigError, PipelineError
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.directory_index import DirectoryState, printable_name
from gauntlet.onnx_model.model_file import model_files
from gauntlet.runtime.operator_libraries import with_operator_libraries

CONFIGS = (".yaml", ".yml")


class FleetModel(Frozen):
    """A model file, or the configuration of a run, with what belongs to it."""

    name: str
    """Its path below the folder, as valid text."""
    path: Path
    data: Path | None = None
    """For a model file: the `.npz` file beside it that bears its name."""

    @property
    def has_valid_path(self) -> bool:
        """Whether its path is UTF-8, which Prefect and ONNX Runtime need."""
        return printable_name(str(self.path)) == str(self.path)

    def configure(self, settings: tuple[str, ...]) -> PipelineConfig:
        """Return the configuration of its run; `ConfigError` when the file is invalid, or a setting."""
        if self.path.suffix.lower() in CONFIGS:
            return load(str(self.path), settings)
        with with_operator_libraries(given_libraries(str(self.path), settings)):
            inferred = infer_config(self.path, self.data, None, {})
        return validated(self.path, inferred.values, settings)

    def digest(self, settings: tuple[str, ...]) -> str:
        """Return what names this model with its data, all files that it names, and the settings, by content."""
        beside = [p for p in self.path.parent.iterdir() if p.name.startswith((f"{self.path.stem}.", self.path.name))]
        named: tuple[Path | DirectoryState, ...] = (*beside, *model_files(self.path))
        if self.path.suffix.lower() in CONFIGS:
            with suppress(PipelineError):  # then its run is refused
                named = (*beside, *_files(load(str(self.path), settings)))
        contents = sorted({_content(each) for each in named})
        return hashlib.sha256(json.dumps([str(self.path), contents, settings]).encode()).hexdigest()


def _files(part: Any) -> Iterator[Path | DirectoryState]:
    """Yield the user's files and folders that a part of a configuration names."""
    match part:
        case Path() | DirectoryState():
            yield part
        case tuple():
            for each in part:
                yield from _files(each)
        case Frozen():
            yield from _files((*getattr(part, "files", tuple)(), *vars(part).values()))


def _content(file: Path | DirectoryState) -> tuple[str, str]:
    if isinstance(file, DirectoryState):
        return file.path, file.sha256
    return str(file), sha256_of([file]) if file.is_file() else ""


def find_models(folder: Path) -> tuple[FleetModel, ...]:
    """Return the models in a folder and below it, by name. Hidden files and linked folders are left out.

    A configuration stands for the model file of the same name beside it. A link to a missing file is a model, too.

    Raises:
        ConfigError: when there is no such folder, its name is not UTF-8, or no model is in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; expected one with model files, or with configurations")
    if printable_name(str(folder.resolve())) != str(folder.resolve()):
        raise ConfigError(f"{printable_name(str(folder))}: the name is not UTF-8. Fix: rename the folder")
    folder, suffixes = folder.resolve(), (*CONFIGS, *model_suffixes())
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)  # but for what it may not read
    paths = [
        path for path in sorted(found) if path.suffix.lower() in suffixes and (path.is_file() or path.is_symlink())
    ]
    configured = {path.with_suffix("") for path in paths if path.suffix.lower() in CONFIGS}
    models = []
    for path in paths:
        name, data = path.relative_to(folder), path.with_suffix(".npz")
        stands_for_itself = path.suffix.lower() in CONFIGS or path.with_suffix("") not in configured
        if stands_for_itself and not any(part.startswith(".") for part in name.parts):
            models.append(FleetModel(name=printable_name(str(name)), path=path, data=data if data.is_file() else None))
    if not models:
        raise ConfigError(f"{folder}: no model in it; expected files that end in {', '.join(suffixes)}")
    return tuple(models)
