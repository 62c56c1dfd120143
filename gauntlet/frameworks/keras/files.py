"""Files of Keras: `.keras` as it is, and a SavedModel, which is a folder, in one zip file."""

import json
import zipfile
from pathlib import Path
from typing import Any

from gauntlet.core.errors import StageError
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow

KERAS = ".keras"
SAVED_MODEL = ".zip"
ADDRESS = "shared_object_id"
GRAPHS = ("saved_model.pb", "saved_model.pbtxt")


def save(path: Path, network: Any) -> None:
    """Write a network as a `.keras` file; equal networks become equal files."""
    network.save(path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in sorted(archive.namelist())}
    # Keras notes the time, and the addresses in memory of what layers are made from; neither belongs to the model.
    told = json.dumps(json.loads(contents["metadata.json"]) | {"date_saved": ""})
    config = json.dumps(json.loads(contents["config.json"], object_hook=_without_address))
    _zip(path, contents | {"metadata.json": told.encode(), "config.json": config.encode()})


def load(path: Path) -> Any:
    """Read a network.

    Raises:
        StageError: when Keras cannot read it, or it needs code of its own.
    """
    keras = start_tensorflow()
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # whatever a layer says; the file may hold anything
        raise StageError(
            f"{path}: Keras {keras.__version__} cannot read it: {' '.join(str(error).split())[:300]}. Where it needs "
            "layers or functions of your own, write a SavedModel, which carries its graph: model.export(FOLDER), then "
            "train.kind: saved-model"
        ) from error


def files_of(folder: Path) -> tuple[Path, ...]:
    """Return the files of a SavedModel, in the order of their paths."""
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def pack_saved_model(folder: Path, path: Path, signature: str) -> None:
    """Put a SavedModel, and which of its signatures is meant, into one file; equal folders become equal files.

    Raises:
        StageError: when the folder is no SavedModel.
    """
    if not any((folder / graph).is_file() for graph in GRAPHS):
        what = "has no saved_model.pb" if folder.is_dir() else "is no folder"
        raise StageError(f"{folder}: {what}; give the folder that model.export or tf.saved_model.save wrote")
    _zip(path, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files_of(folder)}, signature)


def unpack_saved_model(path: Path, folder: Path) -> str:
    """Write into `folder` what `pack` was given, and return the signature that is meant."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        return archive.comment.decode()


def _without_address(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != ADDRESS}


def _zip(path: Path, contents: dict[str, bytes], comment: str = "") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment.encode()
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data)
