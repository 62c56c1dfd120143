"""A pass of a user's own, in a file of theirs."""

import onnx


def remove(model: onnx.ModelProto) -> onnx.ModelProto:
    """Take every Identity out whose input is not the graph's own output."""
    kept = [node for node in model.graph.node if node.op_type != "Identity"]
    renamed = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    for node in kept:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def replace(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make the same function of another operator."""
    node = next(node for node in model.graph.node if node.op_type == "Relu")
    node.op_type = "LeakyRelu"
    node.attribute.append(onnx.helper.make_attribute("alpha", 0.0))
    return model


def without_default_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make constants of the weights that are inputs too."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in stored]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = 8
    return model
