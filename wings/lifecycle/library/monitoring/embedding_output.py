"""A model's penultimate outputs as one more output: what its last layer with weights takes, as a few numbers a sample.

The input of that layer is averaged over places (the sides of a feature map, the tokens of a sequence), and projected
to `VALUES` dimensions by a matrix of random signs, which keeps distances well (Achlioptas, Database-friendly random
projections, Journal of Computer and System Sciences 66, 2003). The signs come from a hash, so they are the same in
every version of NumPy. All of it is in the graph: one call computes it with the model's own outputs.
"""

import hashlib
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.onnx_model.graph import opset_versions
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.request_log.log_format import EMBEDDING
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import Engine
from gauntlet.runtime.session import open_session

VALUES = 32
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class NoEmbedding(StageError):  # noqa: N818 - what the model lacks, not what went wrong
    """A model has no penultimate output that can be watched; the message says why."""


class EmbeddingOutput(Frozen):
    """Where a model's penultimate outputs are in its graph."""

    layer: str
    """The last layer with weights, as messages name it."""
    tensor: str
    """What it takes; where that is quantized, its integers."""
    size: int
    """Channels, or features."""
    channels_first: bool
    """Whether the channels are the second axis; else they are the last one."""
    scale: str = ""
    """Of the integers; empty where `tensor` has floats."""
    zero_point: str = ""

    @property
    def values(self) -> int:
        """Numbers of a sample's embedding."""
        return min(self.size, VALUES)

    def added_to(self, predictor: Predictor, samples: NamedArrays, batches: Iterable[int]) -> Predictor:
        """Return a predictor whose `run` also returns the embedding; on the samples, other outputs keep every bit.

        Raises:
            StageError: when they do not, or when the runtime cannot compute it.
        """
        if isinstance(predictor.session, Engine):
            raise NoEmbedding(f"{predictor.contract.target} gives none")
        other, model, plain = copy(predictor), predictor.bundle.model, predictor.session
        other.session = open_embedding_session(model, self, plain, samples, batches, **predictor.settings)
        return other


def with_embedding(proto: onnx.ModelProto, output: EmbeddingOutput) -> onnx.ModelProto:
    """Return a copy of the model with the embedding as its last output; its external data stays where it is."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph, source = changed.graph, output.tensor
    if output.scale:  # a node of its own: the runtime fuses the model's with what follows it
        inputs = [source, output.scale, *([output.zero_point] if output.zero_point else [])]
        source = _append(graph, "DequantizeLinear", inputs, "dequantized")
    source = _append(graph, "Cast", [source], "floats", to=TensorProto.FLOAT)
    if output.channels_first:
        pooled = _append(graph, "GlobalAveragePool", [source], "pooled")
        rows = _append(graph, "Flatten", [pooled], "rows", axis=1)
    else:
        rows = _mean_of_places(changed, source, output.size)
    if output.size > VALUES:
        rows = _append(graph, "MatMul", [rows, _constant(graph, "signs", projection(output.size))], "projected")
    graph.node.append(helper.make_node("Identity", [rows], [EMBEDDING], name=EMBEDDING))
    graph.output.append(helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, [None, output.values]))
    return changed


def projection(size: int) -> Array:
    """Return the matrix of signs over the square root of `VALUES`, shape (size, VALUES)."""
    stream = hashlib.shake_256(f"onnx-gauntlet embedding {size}".encode()).digest(-(-size * VALUES // 8))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8))[: size * VALUES].reshape(size, VALUES)
    return np.asarray((2.0 * bits - 1) / np.sqrt(VALUES), np.float32)


def _mean_of_places(proto: onnx.ModelProto, source: str, size: int) -> str:
    """Add the mean over all axes but the first and the last; return its name."""
    graph = proto.graph
    shape = _constant(graph, "places", np.array([0, -1, size], np.int64))
    places = _append(graph, "Reshape", [source, shape], "by_place")
    if opset_versions(proto).get("ai.onnx", 0) < 18:
        return _append(graph, "ReduceMean", [places], "rows", axes=[1], keepdims=0)
    axes = _constant(graph, "axes", np.array([1], np.int64))
    return _append(graph, "ReduceMean", [places, axes], "rows", keepdims=0)


def _append(graph: onnx.GraphProto, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
    output = f"{EMBEDDING}/{name}"
    graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
    return output


def _constant(graph: onnx.GraphProto, name: str, values: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(values, f"{EMBEDDING}/{name}"))
    return f"{EMBEDDING}/{name}"


def open_embedding_session(
    model: Path,
    output: EmbeddingOutput,
    plain: Any,
    samples: NamedArrays,
    batches: Iterable[int],
    *,
    threads: int | None = None,
    overrides: Mapping[str, str | int | bool] | None = None,
) -> Any:
    """Return a session with the output `EMBEDDING` besides those of `plain`, which has the same settings.

    Raises:
        NoEmbedding: when the runtime refuses it, an output differs in a single bit from that of `plain` on the
            samples, or the embedding does not have one row per sample.
    """
    try:
        session = open_session(
            with_embedding(read_graph(model), output).SerializeToString(),
            threads=threads,
            settings={WEIGHTS_FOLDER: str(model.resolve().parent)},
            overrides=overrides,
        )
        for batch in sorted(set(batches)):
            expected = batched_inference(plain, samples).run(batch)
            _require_same(batched_inference(session, samples).run(batch), expected, output, batch)
    except NoEmbedding:
        raise
    except StageError as error:
        raise NoEmbedding(f"what {output.layer} takes cannot be an output: {error}") from error
    return session


def _require_same(actual: NamedArrays, expected: NamedArrays, output: EmbeddingOutput, batch: int) -> None:
    embedding = actual.pop(EMBEDDING)
    rows = len(next(iter(expected.values())))
    if embedding.shape != (rows, output.values):
        raise NoEmbedding(f"what {output.layer} takes does not have one entry per sample")
    for name, array in expected.items():
        if any(part(actual[name]) != part(array) for part in (np.shape, np.result_type, np.ndarray.tobytes)):
            raise NoEmbedding(f"with what {output.layer} takes as an output, '{name}' changes at batch {batch}")
