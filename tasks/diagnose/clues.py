"""What is known while one model is examined: its graph, its signature, and the caller's evidence, read into memory."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from tasks.diagnose.finding import Evidence, Layout
from tasks.errors import ConfigError, StageError
from tasks.runtime.graph import read_graph
from tasks.signature import Signature

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Clues:
    """Everything that a fault can be detected from. `data` and `constants` are empty where the caller gave none."""

    path: Path
    proto: onnx.ModelProto
    signature: Signature | None
    data: Arrays
    constants: Arrays
    layout: Layout | None

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph


def read_clues(path: Path, evidence: Evidence) -> Clues:
    """Read the graph and the evidence.

    Raises:
        ConfigError: when a file of the evidence cannot be read.
        StageError: when the model cannot.
    """
    proto = read_graph(path)
    return Clues(path, proto, signature_of(proto), arrays(evidence.data), arrays(evidence.constants), evidence.layout)


def signature_of(proto: onnx.ModelProto) -> Signature | None:
    """Return the model's signature; None where it has none that can be read."""
    try:
        return Signature.read(proto)
    except StageError:
        return None


def arrays(path: Path | None) -> Arrays:
    """Return an `.npz` file's arrays; of a run's `golden.npz`, the real samples and the source's answers for them."""
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ConfigError(f"{path}: one array without a name; write it with numpy.savez(file, name=array)")
            plain = {key: file[key] for key in file.files if not key.startswith(("trace/", "answers/"))}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ConfigError(f"{path}: not a readable .npz file ({error})") from error
    return {key.removeprefix("inputs/real/").removeprefix("outputs/real/"): array for key, array in plain.items()}
