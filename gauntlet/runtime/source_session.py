"""The session of a file as it came, with whose outputs everything that is made of it is compared."""

from pathlib import Path
from typing import Any

from gauntlet.onnx_model.model_file import read_graph
from gauntlet.onnx_model.recognition import precision_of
from gauntlet.runtime.session import open_session


def open_source(model: Path) -> Any:
    """Return a session that computes a float32 file node by node, as it is written.

    Graph optimizations may change its outputs: ONNX Runtime 1.31 moves padding with zeros into a `MaxPool`, which pads
    with minus infinity. Files of other types have their fast kernels by these optimizations alone.

    Raises:
        StageError: as `open_session`.
    """
    return open_session(model, level="off" if precision_of(read_graph(model))[0] == "float32" else "all")
