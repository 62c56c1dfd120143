"""Shared by both PyTorch exporters: arguments, dynamic axes, user functions and readable errors."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.user_code import UserCode, source_files

if TYPE_CHECKING:
    import torch

COLOR = re.compile(r"\x1b\[[0-9;]*m")
LOCATION = re.compile(r'File "(?!<)([^"]+)", line (\d+)')
LIBRARIES = ("site-packages", "dist-packages", "lib/python")
MAX_TEXT = 300


def arguments(network: "torch.nn.Module", example: dict[str, "torch.Tensor"], signature: Signature) -> dict[str, Any]:
    """Return the arguments that name the network, its inputs and its outputs."""
    return {
        "model": network,
        "args": tuple(example[spec.name] for spec in signature.inputs),
        "input_names": [spec.name for spec in signature.inputs],
        "output_names": [spec.name for spec in signature.outputs],
    }


def dynamic_axes(spec: TensorSpec) -> dict[int, str]:
    """Return the dynamic axes: index -> name."""
    return {index: axis for index, axis in enumerate(spec.shape) if isinstance(axis, str)}


def functions_by_operator(folder: Path, name: str | None, key: str) -> dict[Any, Any]:
    """Return the functions by operator that the user's function returns; empty without one.

    Raises:
        StageError: when it fails, or does not return a dictionary.
    """
    if name is None:
        return {}
    try:
        functions = UserCode.read(folder, name).function()()
    except StageError as error:
        raise StageError(f"{key}: {error}") from error
    except Exception as error:  # the user's code may raise anything
        raise StageError(f"{key}: {name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(functions, dict):
        raise StageError(f"{key}: {name} returns {type(functions).__name__}; return a dictionary: operator -> function")
    return functions


def user_files(folder: Path, name: str | None) -> tuple[Path, ...]:
    """Return the files of the user's function."""
    return () if name is None else source_files(folder, name)


@contextlib.contextmanager
def clear_export_errors(exporter: str) -> Iterator[None]:
    """Turn any exception of the exporter into one StageError, and discard what it prints.

    Raises:
        StageError: naming the exporter, the cause, and the line of the network's code.
    """
    try:
        with _silent(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    except Exception as error:  # many types, most of them private
        raise StageError(f"{exporter} cannot export the network: {_cause(error)}") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard output at file descriptor level: the exporters' C++ code prints whole graphs."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        yield
    finally:
        for descriptor, original in enumerate(saved, start=1):
            os.dup2(original, descriptor)
            os.close(original)
        os.close(devnull)


def _cause(error: BaseException) -> str:
    """Return the innermost cause in one line, with the line of the network's code if known."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = COLOR.sub("", str(error))
    lines = [(path, line) for path, line in LOCATION.findall(text) if not any(name in path for name in LIBRARIES)]
    location = f", at {Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else ""
    short = " ".join(text.partition("\n\n")[0].split())
    return f"{type(error).__name__}: {short[:MAX_TEXT]}{location}"
