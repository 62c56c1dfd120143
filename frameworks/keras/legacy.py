"""Files that Keras 2 wrote, read by its last version, `tf_keras`: Keras 3 refuses most of them."""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frameworks.keras.tensorflow_setup import start_tensorflow
from frameworks.trust import untrusted_code

VERSION, CONFIG = "keras_version", "config.json"
OWN_MODULES = ("keras", "tf_keras")
PURE = re.compile(
    r"(__operators__|image|linalg|math|nn|signal)\..+|(compat\.v1\.)?(broadcast_to|cast|clip_by_value|concat|expand_dims"
    r"|gather|identity|one_hot|ones_like|pad|repeat|reshape|reverse|roll|shape|slice|split|squeeze|stack|tile|transpose"
    r"|unstack|where|zeros_like)"
)
"""Functions of TensorFlow that compute and do nothing else; a layer may also name one that writes files."""


def is_legacy(path: Path) -> bool:
    """Return whether a `.keras` or `.h5` file is of Keras 2."""
    return _contents(path)[0].startswith("2.")


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
