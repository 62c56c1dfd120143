"""A network built to saturate: every inner channel is there twice, side by side."""

import numpy as np
import onnx
from onnx import numpy_helper


def with_doubled_channels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network that answers the same, in which every inner channel is there twice, side by side.

    Each of two neighbours has half the weight, so the two largest products of a sum always meet in one pair.

    Args:
        proto: a chain of Conv and Gemm nodes, each Conv with a bias; is changed.
    """
    stored = {t.name: t for t in proto.graph.initializer}
    first = True
    for node in proto.graph.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        weights = numpy_helper.to_array(stored[node.input[1]])
        if not first:
            weights = np.repeat(weights, 2, axis=1) / 2
        if node.op_type == "Conv":
            weights = np.repeat(weights, 2, axis=0)
            bias = stored[node.input[2]]
            bias.CopyFrom(numpy_helper.from_array(np.repeat(numpy_helper.to_array(bias), 2), bias.name))
        stored[node.input[1]].CopyFrom(numpy_helper.from_array(weights, node.input[1]))
        first = False
    del proto.graph.value_info[:]
    return proto
