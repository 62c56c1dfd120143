"""Shared by both PyTorch exporters: arguments, dynamic axes, user functions and readable errors."""

import contextlib
import os
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from frameworks.torch import network as torch_network
from frameworks.torch.program import EXPORTED, SCRIPTED, read_program, with_defaults
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.user_code import UserFunction
from gauntlet.datasets.golden import Golden
from tasks.export.base import Exporter

COLOR = re.compile(r"\x1b\[[0-9;]*m")
LOCATION = re.compile(r'File "(?!<)([^"]+)", line (\d+)')
UNTRANSLATED = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
FUSED_ATTENTION = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_nested_tensor_from_mask")
"""What a trace without gradients makes of PyTorch's attention."""
LIBRARIES = ("site-packages", "dist-packages", "lib/python")
MAX_TEXT = 300


class TorchExport(Exporter, ABC):
    """One of PyTorch's exporters; its field `functions_key` is a user function."""

    kind: str
    opset: int

    framework: ClassVar[str] = "torch"
    packages: ClassVar[dict[str, str]] = {"torch": "torch"}
    functions_key: ClassVar[str]

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        user: UserFunction | None = getattr(self, self.functions_key)
        return user.files() if user else ()

    def functions(self) -> dict[Any, Any]:
        """Return the user's functions by operator; empty without any. Raises StageError when there is no dictionary."""
        user: UserFunction | None = getattr(self, self.functions_key)
        key = f"export.{self.functions_key}"
        if user is None:
            return {}
        try:
            functions = user.load()()
        except StageError as error:
            raise StageError(f"{key}: {error}") from error
        except Exception as error:  # the user's code may raise anything
            raise StageError(f"{key}: {user.function} fails: {type(error).__name__}: {error}") from error
        if not isinstance(functions, dict):
            returned = type(functions).__name__
            raise StageError(f"{key}: {user.function} returns {returned}; return a dictionary: operator -> function")
        return functions

    def write(self, model: Path, signature: Signature, path: Path, samples: NamedArrays | None = None) -> None:
        """Export the network saved in `model` to `path`. Raises StageError when that fails.

        A TorchScript program is run on `samples`, shape (n, ...), or on zeros, which are no lengths of a sequence.
        """
        network, example = _load(model, signature, samples or {})
        functions = self.functions()
        arguments = {
            "model": network,
            "args": example,
            "f": path,
            "input_names": [spec.name for spec in signature.inputs],
            "output_names": [spec.name for spec in signature.outputs],
            "opset_version": self.opset,
        }
        other = "torchscript" if self.kind == "dynamo" else "dynamo"
        fix = f"write this part with other operators, or translate it in export.{self.functions_key}"
        with (
            clear_export_errors(self.kind, f"{fix}; the network's own code may also be exported by {other}"),
            warnings.catch_warnings(),
        ):
            self.export(arguments, signature, functions)

    def write_checked(self, model: Path, signature: Signature, path: Path, golden: Path) -> None:
        """Export with the first golden samples; see `write`."""
        self.write(model, signature, path, Golden.load(golden).real.inputs)

    @abstractmethod
    def export(self, arguments: dict[str, Any], signature: Signature, functions: dict[Any, Any]) -> None:
        """Call `torch.onnx.export` with these arguments and this exporter's own."""


def _load(model: Path, signature: Signature, samples: NamedArrays) -> tuple[Any, tuple[Any, ...]]:
    """Return a saved network or program, and the arguments of one call."""
    if model.suffix not in (EXPORTED, SCRIPTED):
        network, example = torch_network.load_network(model, trust=True)
        return network, tuple(example[spec.name] for spec in signature.inputs)
    arguments = tuple(_argument(spec, samples.get(spec.name)) for spec in signature.inputs)
    program = read_program(model, model.suffix, trust=True)
    return (with_defaults(program, arguments) if model.suffix == SCRIPTED else program), arguments


def _argument(spec: TensorSpec, samples: Array | None) -> Any:
    import torch

    axes = spec.shape if samples is None else (*spec.shape[:1], *samples.shape[1:])
    shape = [torch_network.EXAMPLES if isinstance(axis, str) else axis for axis in axes]
    return torch.from_numpy(np.resize(np.zeros(1) if samples is None else samples, shape).astype(spec.dtype))


def dynamic_axes(spec: TensorSpec) -> dict[int, str]:
    """Return the dynamic axes: index -> name."""
    return {index: axis for index, axis in enumerate(spec.shape) if isinstance(axis, str)}


@contextlib.contextmanager
def clear_export_errors(exporter: str, fix: str) -> Iterator[None]:
    """Turn any exception into one StageError, with the cause and the line of the network's code; discard all output.

    Output is discarded at file descriptor level too: the exporters' C++ code prints whole graphs.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    try:
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
            yield
    except Exception as error:  # many types, most of them private
        if any(operator in str(error) for operator in FUSED_ATTENTION):
            fix = "call torch.backends.mha.set_fastpath_enabled(False), then trace it again"
        raise StageError(f"{exporter} cannot export the network: {_cause(error)}. Fix: {fix}") from error
    finally:
        for descriptor, original in enumerate(saved, start=1):
            os.dup2(original, descriptor)
            os.close(original)


def _cause(error: BaseException) -> str:
    """Return the innermost cause in one line, with the line of the network's code if known."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = COLOR.sub("", str(error))
    if missing := UNTRANSLATED.search(text):
        return f"it has no translation of the operator {missing[1]}"
    lines = [(path, line) for path, line in LOCATION.findall(text) if not any(name in path for name in LIBRARIES)]
    location = f", at {Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else ""
    short = " ".join(text.partition("\n\n")[0].split())
    return f"{type(error).__name__}: {short[:MAX_TEXT]}{location}"
