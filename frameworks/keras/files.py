"""Keras files: `.keras` as it is, and a SavedModel, which is a folder, in one zip file."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

from frameworks.keras.legacy import is_legacy, load_legacy
from frameworks.keras.tensorflow_setup import start_tensorflow
from frameworks.trust import untrusted_code
from gauntlet.core.errors import StageError, one_line

KERAS = ".keras"
SAVED_MODEL = ".zip"
ADDRESS = "shared_object_id"
GRAPHS = ("saved_model.pb", "saved_model.pbtxt")
PROGRAM = "a SavedModel is a program, which may also read and write files"


def save(path: Path, network: Any) -> None:
    """Write a network as a `.keras` file; equal networks give equal files."""
    network.save(path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in sorted(archive.namelist())}
    # Keras stores the time, and memory addresses of shared objects; neither belongs to the model.
    metadata = json.dumps(json.loads(contents["metadata.json"]) | {"date_saved": ""})
    config = json.dumps(json.loads(contents["config.json"], object_hook=_without_address))
    _zip(path, contents | {"metadata.json": metadata.encode(), "config.json": config.encode()})


def save_model(model: Any, sample: object, folder: Path) -> Path | None:
    """Save a model that Python holds, under its name; see `Framework.save`."""
    packages = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    if not any(isinstance(model, package.Model) for package in packages):
        return None
    path = folder / f"{model.name}{KERAS}"
    save(path, model)
    return path


def load(path: Path, *, trust: bool = False) -> Any:
    """Read a network; raise StageError if Keras cannot read it, or it needs custom code.

    Code in the file, such as a Lambda layer, is refused unless `trust` is set.
    """
    keras = start_tensorflow()
    try:
        if is_legacy(path):
            return load_legacy(path, trust=trust)
        return keras.saving.load_model(path, compile=False, safe_mode=not trust)
    except (ModuleNotFoundError, StageError):
        raise
    except Exception as error:  # any layer may fail in its own way
        if not trust and "safe_mode=False" in str(error):  # Keras' advice wherever it refuses code
            raise untrusted_code(path, "it holds Python code, such as a Lambda layer, that loading runs") from error
        fix = "if it needs custom layers or functions, export a SavedModel, which contains its graph: "
        fix += "model.export(FOLDER), then gauntlet run FOLDER --trust"
        fix = "save the whole network: model.save('model.keras')" if "No model config" in str(error) else fix
        raise StageError(f"{path}: Keras {keras.__version__} cannot read it: {one_line(error)}. Fix: {fix}") from error


def files_of(folder: Path) -> tuple[Path, ...]:
    """Return the files of a SavedModel, ordered by path."""
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def pack_saved_model(folder: Path, path: Path, signature: str) -> None:
    """Store a SavedModel and a signature's name in one file, reproducibly; raise StageError if it is not one."""
    if not _has_graph(folder):
        problem = "has no saved_model.pb" if folder.is_dir() else "is not a folder"
        raise StageError(f"{folder}: {problem}; expected the output of model.export or tf.saved_model.save")
    _zip(path, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files_of(folder)}, signature)


def unpack_saved_model(path: Path, folder: Path) -> str:
    """Write what `pack_saved_model` stored into `folder`, and return the name of the signature; else StageError."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        signature = archive.comment.decode()
    if not _has_graph(folder):
        raise StageError("it has no saved_model.pb")
    return signature


def _has_graph(folder: Path) -> bool:
    return any((folder / graph).is_file() for graph in GRAPHS)


def _without_address(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != ADDRESS}


def _zip(path: Path, contents: dict[str, bytes], comment: str = "") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment.encode()
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data)
