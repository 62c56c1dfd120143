"""Small real models, each with one classic fault built in on purpose."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tasks.signature import Signature, TensorSpec

CLASSES = 10


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)


def tensor(name: str, values: object, dtype: type = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def value(name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto],
    opset: int = 18,
    ir_version: int = 8,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "faulty", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="tests")


def cnn(batch: int | str = "batch", opset: int = 18, ir_version: int = 8) -> onnx.ModelProto:
    """A sound network: two convolutions, a pooling and a matrix product; 3 x 16 x 16 pictures."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "relu1"),
        helper.make_node("Conv", ["r", "w2"], ["c"], "conv2", strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["d"], "relu2"),
        helper.make_node("GlobalAveragePool", ["d"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "head"),
    ]
    stored = {"w1": weights(8, 3, 3, 3), "b1": weights(8), "w2": weights(6, 8, 3, 3)}
    stored |= {"w3": weights(6, CLASSES), "b3": weights(CLASSES)}
    initializers = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    inputs, outputs = [value("x", batch, 3, 16, 16)], [value("y", batch, CLASSES)]
    return model(nodes, inputs, outputs, initializers, opset, ir_version)


def picky(most: int, *axes: int) -> onnx.ModelProto:
    """A model that adds nothing, and fails when it is given more than so many samples."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], "count", start=0, end=1),
        helper.make_node("Gather", ["table", "n"], ["none"], "look_up"),
        helper.make_node("Add", ["x", "none"], ["y"], "add"),
    ]
    stored = [tensor("table", np.zeros(most + 1), np.float32)]
    return model(nodes, [value("x", "batch", *axes)], [value("y", "batch", *axes)], stored)


def signed(proto: onnx.ModelProto, layout: str = "NCHW", shape: tuple[int | str, ...] = ("batch", 3, 16, 16)):
    """The same model with a signature."""
    x = TensorSpec(name="x", dtype="float32", shape=shape)
    y = TensorSpec(name="y", dtype="float32", shape=(shape[0], CLASSES))
    Signature.model_validate({"inputs": (x,), "outputs": (y,), "layout": layout}).write(proto)
    return proto


def insert(proto: onnx.ModelProto, node: onnx.NodeProto, place: int, *constants: onnx.TensorProto) -> onnx.ModelProto:
    """Put a node in front of the one at this place; it takes over what that one read first."""
    node.input[0] = proto.graph.node[place].input[0]
    proto.graph.node[place].input[0] = node.output[0]
    proto.graph.node.insert(place, node)
    proto.graph.initializer.extend(constants)
    return proto


def batch_norm_that_trains(opset: int = 18) -> onnx.ModelProto:
    parts = [tensor(n, v, np.float32) for n, v in (("s", [1] * 8), ("o", [0] * 8), ("m", [0.1] * 8), ("v", [2] * 8))]
    outputs = ["n", "new_mean", "new_var"] + (["saved_mean", "saved_var"] if opset < 14 else [])
    node = helper.make_node("BatchNormalization", ["", "s", "o", "m", "v"], outputs, "norm")
    if opset >= 14:
        node.attribute.append(helper.make_attribute("training_mode", 1))
    return insert(cnn(opset=opset), node, 1, *parts)


def dropout_that_drops() -> onnx.ModelProto:
    node = helper.make_node("Dropout", ["", "ratio", "on"], ["dropped"], "drop")
    return insert(cnn(), node, 6, tensor("ratio", 0.5, np.float32), tensor("on", True, np.bool_))


def newer_opset() -> onnx.ModelProto:
    return cnn(opset=28)


def newer_cast() -> onnx.ModelProto:
    """Cast has a new definition in opset 28, so its number alone cannot be lowered."""
    node = helper.make_node("Cast", [""], ["casted"], "cast", to=TensorProto.FLOAT)
    return insert(cnn(opset=28), node, 1)


def newer_ir_version() -> onnx.ModelProto:
    return cnn(ir_version=14)


def frozen_batch() -> onnx.ModelProto:
    return cnn(batch=1)


def reshape_with_batch(first: int = 1, batch: int | str = "batch") -> onnx.ModelProto:
    """The input's batch is called dynamic, and a Reshape inside has a number in its place."""
    proto = cnn(batch)
    proto.graph.node[5].CopyFrom(helper.make_node("Reshape", ["p", "shape"], ["f"], "flatten"))
    proto.graph.initializer.append(tensor("shape", [first, -1]))
    return proto


def reshape_that_mixes_samples() -> onnx.ModelProto:
    """Nothing fails: two samples become one of twice the length."""
    proto = cnn()
    proto.graph.node.append(helper.make_node("Reshape", ["y", "shape"], ["z"], "tail"))
    proto.graph.initializer.append(tensor("shape", [1, -1]))
    proto.graph.output[0].CopyFrom(value("z", "batch", None))
    return proto


def unregistered_operator() -> onnx.ModelProto:
    proto = insert(cnn(), helper.make_node("Sparkle", [""], ["s"], "sparkle", domain="my.company"), 1)
    proto.opset_import.append(helper.make_opsetid("my.company", 1))
    return proto


def operator_of_a_later_opset() -> onnx.ModelProto:
    return insert(cnn(), helper.make_node("Gelu", [""], ["s"], "gelu"), 1)


def missing_shapes() -> onnx.ModelProto:
    """ONNX's inference does not know the runtime's own operators, and all shapes end there."""
    proto = insert(cnn(), helper.make_node("QuickGelu", [""], ["s"], "gelu", domain="com.microsoft"), 1)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def nhwc() -> onnx.ModelProto:
    """What Keras becomes: the input is NHWC, and a transposition comes first."""
    proto = insert(cnn(), helper.make_node("Transpose", [""], ["nchw"], "to_nchw", perm=[0, 3, 1, 2]), 0)
    proto.graph.input[0].CopyFrom(value("x", "batch", 16, 16, 3))
    return proto


def slow_first_call(products: int = 20, size: int = 800) -> onnx.ModelProto:
    """A long chain of constant products, which the runtime computes at every start."""
    nodes, last = [], "w"
    for i in range(products):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"p{i}"]))
        last = f"p{i}"
    nodes += [helper.make_node("ReduceMax", [last, "axes"], ["top"], keepdims=0)]
    nodes += [helper.make_node("Mul", ["x", "top"], ["y"])]
    orthogonal = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0].astype(np.float32)
    stored = [numpy_helper.from_array(orthogonal, "w"), tensor("axes", [0])]
    return model(nodes, [value("x", "batch", size)], [value("y", "batch", size)], stored)


def leaked_constants() -> onnx.ModelProto:
    """As tf2onnx leaves them: one that is read, and one that nothing reads any more."""
    proto = insert(cnn(), helper.make_node("Sub", ["", "model/norm/mean:0"], ["centred"], "norm"), 0)
    proto.graph.input.extend([value("model/norm/mean:0", 1, 3, 1, 1), value("model/norm/sqrt:0", 1, 3, 1, 1)])
    return proto


def unread_input() -> onnx.ModelProto:
    proto = cnn()
    proto.graph.input.append(value("model/norm/sqrt:0", 1, 3, 1, 1))
    return proto


def branches() -> onnx.ModelProto:
    """A sound model with an If, whose branches read from outside, and a Loop."""
    outer = cnn()
    then = helper.make_graph([helper.make_node("Relu", ["y"], ["t"])], "then", [], [value("t", "batch", CLASSES)])
    other = helper.make_graph([helper.make_node("Neg", ["y"], ["e"])], "else", [], [value("e", "batch", CLASSES)])
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "state"], ["next"]), helper.make_node("Identity", ["going"], ["goes"])],
        "body",
        [value("i", kind=TensorProto.INT64), value("going", kind=TensorProto.BOOL), value("state", None, None)],
        [value("goes", kind=TensorProto.BOOL), value("next", None, None)],
    )
    outer.graph.node.append(helper.make_node("If", ["yes"], ["z"], "if", then_branch=then, else_branch=other))
    outer.graph.node.append(helper.make_node("Loop", ["trips", "yes", "z"], ["w"], "loop", body=body))
    outer.graph.initializer.extend([tensor("yes", True, np.bool_), tensor("trips", 2)])
    outer.graph.output[0].CopyFrom(value("w", "batch", CLASSES))
    return outer
