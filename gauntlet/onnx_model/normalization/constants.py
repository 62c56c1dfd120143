"""Stored values as initializers, which is where quantizers look for weights."""

import math
from collections.abc import Collection

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_graphs, all_nodes
from gauntlet.onnx_model.normalization.order import run_passes

MAX_BYTES = 2**31
"""Of a tensor in a file without external data (protobuf)."""


def lift_constants(proto: onnx.ModelProto) -> str:
    """Turn Constant nodes into initializers, in inner graphs as well; those that are outputs of a graph stay.

    Sparse weights become dense: ONNX's shape inference and most tools do not read them.
    """
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    sparse, before = _store_densely(proto), _constant_nodes(proto)
    dense = f"turned {sparse} sparse initializers into dense ones" if sparse else ""
    if not before or not run_passes(proto, LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)):
        return dense
    proto.ir_version = max(proto.ir_version, 4)  # before, every initializer is an input too
    lifted = f"turned {before - _constant_nodes(proto)} Constant nodes into initializers"
    return ", ".join(filter(None, [dense, lifted]))


def _store_densely(proto: onnx.ModelProto) -> int:
    """Replace each sparse initializer; indices are places in the flat tensor, (n,), or along each axis, (n, axes)."""
    count = 0
    for graph in all_graphs(proto.graph):
        for sparse in graph.sparse_initializer:
            values, places = (numpy_helper.to_array(part) for part in (sparse.values, sparse.indices))
            if math.prod(sparse.dims) * values.itemsize >= MAX_BYTES:
                raise StageError(f"the sparse initializer {sparse.values.name!r} is too large to be made dense")
            dense = np.zeros(sparse.dims, values.dtype)
            try:
                dense[np.unravel_index(places, dense.shape) if places.ndim == 1 else tuple(places.T)] = values
            except (ValueError, IndexError) as error:
                raise StageError(f"the sparse initializer {sparse.values.name!r} is damaged: {error}") from error
            graph.initializer.append(numpy_helper.from_array(dense, sparse.values.name))
            count += 1
        del graph.sparse_initializer[:]
    return count


def _constant_nodes(proto: onnx.ModelProto) -> int:
    return sum(node.op_type == "Constant" and node.domain in ("", "ai.onnx") for node in all_nodes(proto.graph))


def default_inputs(graph: onnx.GraphProto, declared: Collection[str] = ()) -> list[onnx.ValueInfoProto]:
    """Return the inputs that have an initializer, without those that a signature declares."""
    stored = {tensor.name for tensor in graph.initializer} - set(declared)
    return [value for value in graph.input if value.name in stored]


def drop_default_inputs(proto: onnx.ModelProto, declared: Collection[str] = ()) -> str:
    """Remove initializers from the inputs: a runtime takes none for a constant that a caller may replace."""
    dropped = default_inputs(proto.graph, declared)
    for value in dropped:
        proto.graph.input.remove(value)
    if not dropped:
        return ""
    proto.ir_version = max(proto.ir_version, 4)
    return f"removed {len(dropped)} initializers from the inputs, such as '{dropped[0].name}'"
