"""What the checks of one model work on: its graph, its signature, and the caller's hints, read into memory."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Signature
from gauntlet.diagnosis.findings import CallerHints, Layout
from gauntlet.onnx_model.graph import read_untrusted_graph


@dataclass(frozen=True)
class ModelContext:
    """The input of every check. `data` and `constants` are empty where the caller gave none."""

    path: Path
    proto: onnx.ModelProto
    signature: Signature | None
    data: NamedArrays
    constants: NamedArrays
    layout: Layout | None

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph


def read_context(path: Path, hints: CallerHints) -> ModelContext:
    """Read the graph and the files that the hints name.

    Raises:
        ConfigError: when a file that the hints name cannot be read.
        StageError: when the model cannot be read.
    """
    proto = read_untrusted_graph(path)
    return ModelContext(path, proto, signature_of(proto), arrays(hints.data), arrays(hints.constants), hints.layout)


def signature_of(proto: onnx.ModelProto) -> Signature | None:
    """Return the model's signature, or None where it is missing or unreadable."""
    try:
        return Signature.read(proto)
    except StageError:
        return None


def arrays(path: Path | None) -> NamedArrays:
    """Return the arrays of an `.npz` file; of a run's `golden.npz`, the real samples and their reference outputs."""
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ConfigError(
                    f"{path}: expected named arrays, got an unnamed one; write it with numpy.savez(file, name=array)"
                )
            plain = {key: file[key] for key in file.files if not key.startswith(("trace/", "answers/"))}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ConfigError(f"{path}: not a readable .npz file ({error})") from error
    return {key.removeprefix("inputs/real/").removeprefix("outputs/real/"): array for key, array in plain.items()}
