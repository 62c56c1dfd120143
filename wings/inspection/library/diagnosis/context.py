"""What the checks of one model work on: its graph, its signature, and the caller's hints, read into memory."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.graph import read_untrusted_graph
from wings.inspection.library.diagnosis.findings import CallerHints, Layout
from wings.inspection.library.diagnosis.input_generator import InputGenerator


@dataclass(frozen=True)
class ModelContext:
    """The input of every check. `data` and `constants` are empty where the caller gave none."""

    path: Path
    proto: onnx.ModelProto
    data: NamedArrays
    constants: NamedArrays
    layout: Layout | None

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph

    @property
    def signature(self) -> Signature | None:
        """The model's signature, or None where it is missing or unreadable."""
        return Signature.find(self.proto)

    @property
    def generator(self) -> InputGenerator:
        """A generator of the model's inputs, from the caller's samples."""
        return InputGenerator(self.graph, self.data)


def read_context(path: Path, hints: CallerHints) -> ModelContext:
    """Read the graph and the files of the hints; `StageError` or `ConfigError` when that fails."""
    return ModelContext(path, read_untrusted_graph(path), _arrays(hints.data), _arrays(hints.constants), hints.layout)


def _arrays(path: Path | None) -> NamedArrays:
    """Return the arrays of an `.npz` file; of a run's `golden.npz`, the real samples and their reference outputs."""
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ConfigError(
                    f"{path}: expected named arrays, got one; write it with numpy.savez(file, name=array)"
                )
            plain = {key: file[key] for key in file.files if not key.startswith(("trace/", "answers/"))}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ConfigError(f"{path}: not a readable .npz file ({error})") from error
    return {key.removeprefix("inputs/real/").removeprefix("outputs/real/"): array for key, array in plain.items()}
