"""Padding with zeros before a maximum, which ONNX Runtime computes as padding with minus infinity."""

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.onnx_model.graph import all_graphs, constants

NEARLY_ZERO = np.float32(2e-38)
NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Abs", "Exp")
"""Operators whose outputs are at least 0; of those, both paddings have the same maximum."""


def keep_zero_padding(proto: onnx.ModelProto) -> str:
    """Make the zeros that pad a `MaxPool` nearly zeros, unless what they pad is never negative.

    ONNX Runtime (seen with 1.31, its pass PadFusion came with 1.17) moves a constant padding with zeros into the
    pooling, which ignores what is padded: where all values of a window are negative, the maximum is one of them instead
    of zero. The ZeroPadding2D of Keras' ResNet50V2 is such a padding.
    """
    changed = list[str]()
    for graph in all_graphs(proto.graph):
        known, made_by = constants(graph), {name: node for node in graph.node for name in node.output}
        pooled = {node.input[0] for node in graph.node if node.op_type == "MaxPool"}
        for node in graph.node:
            if node.op_type != "Pad" or node.output[0] not in pooled or not _pads_zeros(node, known):
                continue
            source = made_by.get(node.input[0])
            if source is not None and source.op_type in NEVER_NEGATIVE:
                continue
            name = f"{node.output[0]}_padding"
            graph.initializer.append(numpy_helper.from_array(np.asarray(NEARLY_ZERO), name))
            inputs = [*node.input[:2], name, *node.input[3:]]
            del node.input[:]
            node.input.extend(inputs)
            changed.append(node.output[0])
    if not changed:
        return ""
    return f"padded {len(changed)} maxima with {NEARLY_ZERO:.0e}, such as '{changed[0]}': the runtime ignores zeros"


def _pads_zeros(node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> bool:
    """Return whether a `Pad` (opset 11 and newer) adds zeros of float32, as far as the file tells."""
    if any(attribute.name == "mode" and attribute.s != b"constant" for attribute in node.attribute):
        return False
    if len(node.input) < 3 or not node.input[2]:
        return len(node.input) > 1  # older ones have the padding as an attribute
    value = known.get(node.input[2])
    return value is not None and value.data_type == onnx.TensorProto.FLOAT and not numpy_helper.to_array(value).any()
