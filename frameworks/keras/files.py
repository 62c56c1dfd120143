"""Keras files: `.keras` as it is, a SavedModel, which is a folder, in one zip file, and what Keras 2 wrote."""

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        if _contents(path)[0].startswith("2."):
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


VERSION, CONFIG = "keras_version", "config.json"
OWN_MODULES = ("keras", "tf_keras")
PURE = re.compile(
    r"(__operators__|image|linalg|math|nn|signal)\..+|(compat\.v1\.)?(broadcast_to|cast|clip_by_value|concat|expand_dims"
    r"|gather|identity|one_hot|ones_like|pad|repeat|reshape|reverse|roll|shape|slice|split|squeeze|stack|tile|transpose"
    r"|unstack|where|zeros_like)"
)
"""Functions of TensorFlow that compute and do nothing else; a layer may also name one that writes files."""


def load_legacy(path: Path, *, trust: bool) -> Any:
    """Read a network of Keras 2; whatever its reader raises.

    Its safe mode runs the code of a Lambda layer in an `.h5` file, and imports any module that a file names. So a
    file that names more than layers of Keras and pure functions of TensorFlow needs `trust`.

    Raises:
        StageError: when the file brings code that is not trusted.
    """
    start_tensorflow()
    import tf_keras

    if not trust and (part := next(_code(json.loads(_contents(path)[1] or "{}")), None)):
        raise untrusted_code(path, f"it holds {part}, whose code loading runs")
    return tf_keras.models.load_model(path, compile=False, safe_mode=not trust)


def _contents(path: Path) -> tuple[str, str]:
    """Return the version of Keras that wrote a file, and the network's configuration; empty where there is none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if not {CONFIG, "metadata.json"} <= {*archive.namelist()}:
                return "", ""
            return str(json.loads(archive.read("metadata.json")).get(VERSION)), archive.read(CONFIG).decode()
    import h5py

    if not h5py.is_hdf5(path):
        return "", ""
    with h5py.File(path) as file:
        version, config = file.attrs.get(VERSION, ""), file.attrs.get("model_config", "")
    return tuple(text.decode() if isinstance(text, bytes) else str(text) for text in (version, config))  # type: ignore[return-value]


def _code(value: Any) -> Iterator[str]:
    """Yield the parts of a configuration that may run code."""
    if isinstance(value, dict):
        name, module = value.get("class_name"), value.get("module")
        if name in ("Lambda", "__lambda__", "function"):
            yield "a Lambda layer or a function of its own"
        elif isinstance(module, str) and module.partition(".")[0] not in OWN_MODULES:
            yield f"the class {module}.{name}"
        elif name in ("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"):
            function = str((value.get("config") or {}).get("function"))
            if not PURE.fullmatch(function):
                yield f"the function {function}"
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from _code(part)
