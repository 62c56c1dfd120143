"""The light models of the onnx package: published networks at opset 9, whose weights are replaced by random ones."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FILES = sorted(FOLDER.glob("*.onnx"))

NARROW = {4096: 64}
"""Size of a fully connected layer -> a smaller one: three of the networks have hundreds of megabytes there."""


def light_model(file: Path) -> onnx.ModelProto:
    """Return the network with a weight, which is an input as well, in place of each node that makes a constant one."""
    proto, rng = onnx.load(file), np.random.default_rng(0)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    kept = []
    for node in proto.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape, name = [NARROW.get(int(axis), int(axis)) for axis in stored[node.input[0]]], node.output[0]
        if len(shape) > 1:
            weight = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        else:
            weight = np.abs(rng.standard_normal(shape, np.float32)) * np.float32(0.1) + np.float32(0.5)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
        proto.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return proto
