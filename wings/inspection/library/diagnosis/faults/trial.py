"""Try a transformation on a copy of a graph."""

from collections.abc import Callable

import onnx

from gauntlet.onnx_model.graph import without_weights
from wings.inspection.library.diagnosis.context import ModelContext


def would_change(context: ModelContext, transformation: Callable[[onnx.ModelProto], str]) -> str:
    """Return what a transformation changes in a copy without large weights; empty where it fails, too."""
    try:
        return transformation(without_weights(context.proto))
    except MemoryError:
        raise
    except Exception:  # an invalid graph, which the checker explains
        return ""
