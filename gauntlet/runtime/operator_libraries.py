"""Shared libraries with operators of somebody's own: every session of a run gets them.

They are named in the environment and not in the model: a model from a stranger must not choose what code is loaded.
Processes that this one starts, such as those of the benchmark, inherit them.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from gauntlet.core.errors import ConfigError, StageError

VARIABLE = "GAUNTLET_OPERATOR_LIBRARIES"


def operator_libraries() -> tuple[Path, ...]:
    """Return the libraries that sessions of this process get."""
    return tuple(Path(name).resolve() for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name)


@contextmanager
def with_operator_libraries(libraries: tuple[Path, ...]) -> Iterator[None]:
    """Give these libraries to all sessions, those of other processes included, besides the ones that they have.

    Raises:
        ConfigError: when a file is missing.
    """
    missing = [path for path in libraries if not path.is_file()]
    if missing:
        raise ConfigError(f"operator_libraries: {missing[0]}: no such file")
    before = os.environ.get(VARIABLE)
    names = dict.fromkeys(str(path) for path in (*operator_libraries(), *(library.resolve() for library in libraries)))
    os.environ[VARIABLE] = os.pathsep.join(names)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def session_options() -> Any:
    """Return new options of a session, with the libraries.

    Raises:
        StageError: when one cannot be loaded.
    """
    options = ort.SessionOptions()
    for path in operator_libraries():
        try:
            options.register_custom_ops_library(str(path))
            _stay_loaded(path)
        except Exception as error:  # the runtime's own exceptions share no public base
            raise StageError(f"operator_libraries: {path} cannot be loaded: {error}") from error
    return options


@cache
def _stay_loaded(path: Path) -> None:
    """Hold a library for as long as the process lives.

    The runtime lets go of it with each session. Whether it is unloaded then, the system's loader decides, and a library
    that comes back need not stand that: onnxruntime-extensions 0.15 crashes when its Python package is loaded too.
    """
    ctypes.CDLL(str(path))
