"""What both of PyTorch's exporters are given: the network, its example, and the axes that change."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageError
from tasks.signature import Signature, TensorSpec
from tasks.sources.torch.code import Code, files_of

if TYPE_CHECKING:
    import torch

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PLACE = re.compile(r'File "(?!<)([^"]+)", line (\d+)')
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
    """Return the names of the axes that have one."""
    return {place: axis for place, axis in enumerate(spec.shape) if isinstance(axis, str)}


def functions_by_operator(folder: Path, name: str | None, key: str) -> dict[Any, Any]:
    """Call the user's function that returns a dictionary of functions, or return none.

    Raises:
        StageError: when it fails, or returns something else.
    """
    if name is None:
        return {}
    try:
        found = Code.read(folder, name).function()()
    except StageError as error:
        raise StageError(f"{key}: {error}") from error
    except Exception as error:  # the user's code may raise anything
        raise StageError(f"{key}: {name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise StageError(f"{key}: {name} returns {type(found).__name__}; return a dictionary: a function by operator")
    return found


def user_files(folder: Path, name: str | None) -> tuple[Path, ...]:
    """Return the files of the user's function."""
    return () if name is None else files_of(folder, name)


@contextlib.contextmanager
def exporting(exporter: str) -> Iterator[None]:
    """Turn whatever the exporter raises into one clear sentence; what it prints on the way says no more.

    Raises:
        StageError: naming the exporter, the cause, and the line of the network's code.
    """
    try:
        with _silent(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    except Exception as error:  # dozens of types, most of them private
        raise StageError(f"{exporter} cannot export the network: {_cause(error)}") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Throw away what is printed past Python: the exporters' C++ parts write whole graphs."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for descriptor, original in enumerate(kept, start=1):
            os.dup2(original, descriptor)
            os.close(original)
        os.close(nowhere)


def _cause(error: BaseException) -> str:
    """Return the innermost cause in a line, with the place in the network's code where it is known."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = COLOUR.sub("", str(error))
    places = [(path, line) for path, line in PLACE.findall(text) if not any(name in path for name in LIBRARIES)]
    place = f", at {Path(places[-1][0]).name}:{places[-1][1]}" if places else ""
    short = " ".join(text.partition("\n\n")[0].split())
    return f"{type(error).__name__}: {short[:MAX_TEXT]}{place}"
