"""Shared libraries with custom operators, which all sessions of a run register.

The environment names them, which child processes inherit, not the model: an untrusted model must not choose what code
is loaded.
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
from gauntlet.runtime.resources import environment_variables

VARIABLE = "GAUNTLET_OPERATOR_LIBRARIES"


def operator_libraries() -> tuple[Path, ...]:
    """Return the libraries that sessions of this process register."""
    return tuple(Path(name).resolve() for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name)


@contextmanager
def with_operator_libraries(libraries: tuple[Path, ...]) -> Iterator[None]:
    """Add libraries to all sessions, including those of child processes; `ConfigError` when a file is missing."""
    missing = [path for path in libraries if not path.is_file()]
    if missing:
        raise ConfigError(f"operator_libraries: {missing[0]}: no such file")
    names = dict.fromkeys(str(path.resolve()) for path in (*operator_libraries(), *libraries))
    with environment_variables({VARIABLE: os.pathsep.join(names)}):
        yield


def session_options() -> Any:
    """Return new session options with the libraries; `StageError` when one cannot be loaded."""
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
    """Keep a library after its session: onnxruntime-extensions 0.15 crashes if loaded again beside its package."""
    ctypes.CDLL(str(path))
