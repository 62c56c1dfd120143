"""Small real models, each with one classic fault built in on purpose."""

import numpy as np
import onnx
import onnx_text
from onnx import TensorProto, helper, parser

from gauntlet.core.signature import Signature, TensorSpec

CLASSES = 10


def value(name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def cnn(batch: int | str = "batch", opset: int = 18, ir_version: int = 8) -> onnx.ModelProto:
    """A sound network: two convolutions, a pooling and a matrix product; 3 x 16 x 16 pictures."""
    text = f"""
        cnn (float[{batch},3,16,16] x) => (float[{batch},{CLASSES}] y)
        <
            float[8,3,3,3] w1, float[8] b1, float[6,8,3,3] w2,
            float[6,{CLASSES}] w3, float[{CLASSES}] b3
        >
        {{
            [conv1] a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
            [relu1] r = Relu(a)
            [conv2] c = Conv<strides = [2, 2]>(r, w2)
            [relu2] d = Relu(c)
            [pool] p = GlobalAveragePool(d)
            [flatten] f = Flatten(p)
            [head] y = Gemm(f, w3, b3)
        }}
    """
    return onnx_text.model(text, opset=opset, ir_version=ir_version)


def picky(most: int, *axes: int) -> onnx.ModelProto:
    """A model that adds nothing, and fails when it is given more than so many samples."""
    shape = ",".join(["batch", *map(str, axes)])
    text = f"""
        picky (float[{shape}] x) => (float[{shape}] y)
        <float[{most + 1}] table>
        {{
            [count] n = Shape<start = 0, end = 1>(x)
            [look_up] none = Gather(table, n)
            [add] y = Add(x, none)
        }}
    """
    return onnx_text.model(text, {"table": np.zeros(most + 1)})


def signed(proto: onnx.ModelProto, layout: str = "NCHW", shape: tuple[int | str, ...] = ("batch", 3, 16, 16)):
    """The same model with a signature."""
    x = TensorSpec(name="x", dtype="float32", shape=shape)
    y = TensorSpec(name="y", dtype="float32", shape=(shape[0], CLASSES))
    Signature.model_validate({"inputs": (x,), "outputs": (y,), "layout": layout}).write(proto)
    return proto


def insert(proto: onnx.ModelProto, place: int, text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """Put a node in front of the one at this place, which then reads the new node's first output first."""
    onnx_text.extend(proto, text, place, weights)
    proto.graph.node[place + 1].input[0] = proto.graph.node[place].output[0]
    return proto


def batch_norm_that_trains(opset: int = 18) -> onnx.ModelProto:
    outputs, attributes = "n, new_mean, new_var", "<training_mode = 1>"
    if opset < 14:
        outputs, attributes = "n, new_mean, new_var, saved_mean, saved_var", ""
    text = f"""
        <float[8] s, float[8] o, float[8] m, float[8] v>
        {{ [norm] {outputs} = BatchNormalization{attributes}(a, s, o, m, v) }}
    """
    parameters = {"s": np.ones(8), "o": np.zeros(8), "m": np.full(8, 0.1), "v": np.full(8, 2)}
    return insert(cnn(opset=opset), 1, text, **parameters)


def dropout_that_drops() -> onnx.ModelProto:
    return insert(cnn(), 6, "<float ratio = {0.5}, bool on = {1}> { [drop] dropped = Dropout(f, ratio, on) }")


def newer_opset() -> onnx.ModelProto:
    return cnn(opset=28)


def newer_cast() -> onnx.ModelProto:
    """Cast has a new definition in opset 28, so its number alone cannot be lowered."""
    return insert(cnn(opset=28), 1, "{ [cast] casted = Cast<to = 1>(a) }")


def newer_ir_version() -> onnx.ModelProto:
    return cnn(ir_version=14)


def frozen_batch() -> onnx.ModelProto:
    return cnn(batch=1)


def reshape_with_batch(first: int = 1, batch: int | str = "batch") -> onnx.ModelProto:
    """The input's batch is called dynamic, and a Reshape inside has a number in its place."""
    proto = cnn(batch)
    del proto.graph.node[5]
    onnx_text.extend(proto, f"<int64[2] shape = {{{first}, -1}}> {{ [flatten] f = Reshape(p, shape) }}", 5)
    return proto


def reshape_that_mixes_samples() -> onnx.ModelProto:
    """Nothing fails: two samples become one of twice the length."""
    proto = cnn()
    onnx_text.extend(proto, "tail () => (float[batch,?] z) <int64[2] shape = {1, -1}> { [tail] z = Reshape(y, shape) }")
    return proto


def unregistered_operator() -> onnx.ModelProto:
    proto = insert(cnn(), 1, "{ [sparkle] s = my.company.Sparkle(a) }")
    proto.opset_import.append(helper.make_opsetid("my.company", 1))
    return proto


def operator_of_a_later_opset() -> onnx.ModelProto:
    return insert(cnn(), 1, "{ [gelu] s = Gelu(a) }")


def missing_shapes() -> onnx.ModelProto:
    """ONNX's inference does not know the runtime's own operators, and all shapes end there."""
    proto = insert(cnn(), 1, "{ [gelu] s = com.microsoft.QuickGelu(a) }")
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def old_opset() -> onnx.ModelProto:
    return cnn(opset=11)


def constant_weight() -> onnx.ModelProto:
    """The second convolution's weight is a Constant node."""
    proto = cnn()
    weight = next(t for t in proto.graph.initializer if t.name == "w2")
    onnx_text.extend(proto, "{ [weight] w2 = Constant<value_float = 1.0>() }", 0)
    proto.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("value", weight))
    proto.graph.initializer.remove(weight)
    return proto


def default_input() -> onnx.ModelProto:
    proto = cnn()
    proto.graph.input.append(value("w2", 6, 8, 3, 3))
    return proto


def constant_branch() -> onnx.ModelProto:
    proto = branches()
    next(node for node in proto.graph.node if node.op_type == "If").input[0] = "yes"
    for node in [node for node in proto.graph.node if node.name in ("top", "sign")]:
        proto.graph.node.remove(node)
    return proto


def forgotten_padding() -> onnx.ModelProto:
    """A convolution, whose outputs may be negative, zeros around them, and a maximum."""
    text = """padded (float[n,3,16,16] x) => (float[n,4,9,9] y)
    <float[4,3,3,3] w, int64[8] pads = {0,0,1,1,0,0,1,1}, float zero = {0.0}, float[4] low = {-9.0, -9.0, -9.0, -9.0}> {
        [conv] c = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, w, low)
        [pad] p = Pad(c, pads, zero)
        [pool] y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(p) }"""
    return onnx_text.model(text, opset=18)


def local_function() -> onnx.ModelProto:
    proto = cnn()
    proto.functions.append(
        parser.parse_function('<domain: "own", opset_import: ["": 18]> twice (a) => (b) { [add] b = Add(a, a) }')
    )
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return insert(proto, 6, "{ [call] g = own.twice(f) }")


def wrong_shape() -> onnx.ModelProto:
    proto = cnn()
    proto.graph.value_info.append(value("c", "batch", 128, 7, 7))
    return proto


def unused_node() -> onnx.ModelProto:
    proto = cnn()
    onnx_text.extend(proto, "{ [idle] i = Neg(a) }")
    return proto


def repeated_name() -> onnx.ModelProto:
    proto = cnn()
    proto.graph.node[3].name = "relu1"
    return proto


def unsorted() -> onnx.ModelProto:
    proto = cnn()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([nodes[1], nodes[0], *nodes[2:]])
    return proto


def nhwc() -> onnx.ModelProto:
    """What Keras becomes: the input is NHWC, and a transposition comes first."""
    proto = insert(cnn(), 0, "{ [to_nchw] nchw = Transpose<perm = [0, 3, 1, 2]>(x) }")
    proto.graph.input[0].CopyFrom(value("x", "batch", 16, 16, 3))
    return proto


def slow_first_call(products: int = 40, size: int = 800) -> onnx.ModelProto:
    """A long chain of constant products, which the runtime computes at every start."""
    chain = "\n".join(f"p{i} = MatMul({f'p{i - 1}' if i else 'w'}, w)" for i in range(products))
    text = f"""
        slow (float[batch,{size}] x) => (float[batch,{size}] y)
        <float[{size},{size}] w, int64[1] axes = {{0}}>
        {{
            {chain}
            top = ReduceMax<keepdims = 0>(p{products - 1}, axes)
            y = Mul(x, top)
        }}
    """
    orthogonal = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0]
    return onnx_text.model(text, {"w": orthogonal})


def leaked_constants() -> onnx.ModelProto:
    """As tf2onnx leaves them: one that is read, and one that nothing reads any more."""
    proto = insert(cnn(), 0, '{ [norm] centred = Sub(x, "model/norm/mean:0") }')
    proto.graph.input.extend([value("model/norm/mean:0", 1, 3, 1, 1), value("model/norm/sqrt:0", 1, 3, 1, 1)])
    return proto


def unread_input() -> onnx.ModelProto:
    proto = cnn()
    proto.graph.input.append(value("model/norm/sqrt:0", 1, 3, 1, 1))
    return proto


def branches() -> onnx.ModelProto:
    """A sound model with an If, whose branches read from outside, and a Loop."""
    proto = cnn()
    text = """
        branches () => (float[batch,10] w)
        <bool yes = {1}, int64 trips = {2}, float zero = {0}>
        {
            [top] most = ReduceMax<keepdims = 0>(y) [sign] positive = Greater(most, zero)
            [if] z = If(positive) <
                then_branch = then () => (float[batch,10] t) { t = Relu(y) },
                else_branch = else () => (float[batch,10] e) { e = Neg(y) }
            >
            [loop] w = Loop(trips, yes, z) <
                body = body (int64 i, bool going, float[?,?] state) => (bool goes, float[?,?] next) {
                    next = Add(state, state) goes = Identity(going)
                }
            >
        }
    """
    onnx_text.extend(proto, text)
    return proto


def joined_head(apart: bool = False) -> onnx.ModelProto:
    """A detector's head: boxes in pixels and scores from 0 to 1, joined in one output unless they are apart."""
    boxes, scores = "n, 4, 256", f"n, {CLASSES}, 256"
    outputs = f"float[{boxes}] pixels, float[{scores}] scores" if apart else f"float[n, {4 + CLASSES}, 256] y"
    join = "" if apart else "[join] y = Concat<axis = 1>(pixels, scores)"
    text = f"""
        head (float[n,3,16,16] x) => ({outputs})
        <
            float[4,3,3,3] w1, float[{CLASSES},3,3,3] w2, float[1,1,1] size,
            int64[3] flat = {{0, 0, -1}}
        >
        {{
            [conv1] a = Conv<pads = [1, 1, 1, 1]>(x, w1)
            [conv2] b = Conv<pads = [1, 1, 1, 1]>(x, w2)
            [flat1] c = Reshape(a, flat)
            [flat2] d = Reshape(b, flat)
            [scale] pixels = Mul(c, size)
            [squash] scores = Sigmoid(d)
            {join}
        }}
    """
    return onnx_text.model(text)
