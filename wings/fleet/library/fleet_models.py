"""The models of a folder, and the configuration of a run of each."""

import hashlib
import json
import os
from pathlib import Path

from configs.brought_model import infer_config
from configs.frameworks import suffixes as model_suffixes
from configs.loader import given_libraries, load, validated
from configs.schema import PipelineConfig
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen
from gauntlet.runtime.operator_libraries import with_operator_libraries

CONFIGS = (".yaml", ".yml")


class FleetModel(Frozen):
    """A model file, or the configuration of a run, with what belongs to it."""

    name: str
    """Its path below the folder."""
    path: Path
    data: Path | None = None
    """For a model file: the `.npz` file beside it that bears its name."""

    def configure(self, settings: tuple[str, ...]) -> PipelineConfig:
        """Return the configuration of its run; `ConfigError` when the file is invalid, or a setting."""
        if self.path.suffix.lower() in CONFIGS:
            return load(str(self.path), settings)
        with with_operator_libraries(given_libraries(str(self.path), settings)):
            inferred = infer_config(self.path, self.data, None, {})
        return validated(self.path, inferred.values, settings)

    def digest(self, settings: tuple[str, ...]) -> str:
        """Return what names this model with its data, its weights beside it, and the settings, by content."""
        beside = [p for p in self.path.parent.iterdir() if p.name.startswith((f"{self.path.stem}.", self.path.name))]
        files = [(path.name, sha256_of([path])) for path in sorted(beside) if path.is_file()]
        return hashlib.sha256(json.dumps([self.name, files, settings]).encode()).hexdigest()


def find_models(folder: Path) -> tuple[FleetModel, ...]:
    """Return the models in a folder and below it, by name. Hidden files are left out.

    A configuration stands for the model file of the same name beside it.

    Raises:
        ConfigError: when there is no such folder, or no model in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; expected one with model files, or with configurations")
    folder, suffixes = folder.resolve(), (*CONFIGS, *model_suffixes())
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)  # but for what it may not read
    paths = [path for path in sorted(found) if path.suffix.lower() in suffixes and path.is_file()]
    configured = {path.with_suffix("") for path in paths if path.suffix.lower() in CONFIGS}
    models = []
    for path in paths:
        name, data = path.relative_to(folder), path.with_suffix(".npz")
        stands_for_itself = path.suffix.lower() in CONFIGS or path.with_suffix("") not in configured
        if stands_for_itself and not any(part.startswith(".") for part in name.parts):
            models.append(FleetModel(name=str(name), path=path, data=data if data.is_file() else None))
    if not models:
        raise ConfigError(f"{folder}: no model in it; expected files that end in {', '.join(suffixes)}")
    return tuple(models)
