"""Models as other tools export them, and ways in which they would have stored the same model."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_text
from onnx import helper


def convolutions(opset: int = 13) -> onnx.ModelProto:
    """Three convolutions with batch norms, a residual sum and a linear head."""
    text = """
    convolutions (float[n,3,32,32] image) => (float[n,10] scores)
    <float[16,3,3,3] w1, float[16] g, float[16] b, float[16] m, float[16] v,
     float[32,16,3,3] w2, float[32,32,3,3] w3, float[32] b3, float[32,10] w4, float[10] b4> {
        c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, w1)
        n1 = BatchNormalization(c1, g, b, m, v) r1 = Relu(n1)
        p1 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r1)
        c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p1, w2) r2 = Relu(c2)
        c3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r2, w3, b3) sum = Add(c3, r2)
        mean = GlobalAveragePool(sum) flat = Flatten(mean) scores = Gemm(flat, w4, b4)
    }
    """
    return onnx_text.model(text, {"v": np.ones(16)}, opset=opset)


def products() -> onnx.ModelProto:
    """A multilayer perceptron of MatMul and Add."""
    text = """
    products (float[n,64] x) => (float[n,8] scores)
    <float[64,256] w1, float[256] b1, float[256,256] w2, float[256] b2, float[256,8] w3> {
        h1 = MatMul(x, w1) s1 = Add(h1, b1) r1 = Relu(s1) h2 = MatMul(r1, w2) s2 = Add(h2, b2) r2 = Relu(s2)
        scores = MatMul(r2, w3)
    }
    """
    return onnx_text.model(text, opset=13)


def infinite_mask() -> onnx.ModelProto:
    """Attention with a mask of minus infinity, as transformers have it."""
    text = """
    attention (float[n,8,32] x) => (float[n,8,32] y)
    <float[32,32] q, float[32,32] k, float[32,32] v, float[32,32] o, float[32] g, float[32] b,
     bool[8,8] upper = {0,1,1,1,1,1,1,1,0,0,1,1,1,1,1,1,0,0,0,1,1,1,1,1,0,0,0,0,1,1,1,1,
                        0,0,0,0,0,1,1,1,0,0,0,0,0,0,1,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,0},
     float zero = {0}, float one = {1}, float root = {5.657}> {
        n1 = LayerNormalization(x, g, b) qs = MatMul(n1, q) ks = MatMul(n1, k) vs = MatMul(n1, v)
        kt = Transpose<perm = [0, 2, 1]>(ks) products = MatMul(qs, kt) scaled = Div(products, root)
        infinity = Div(one, zero) nothing = Neg(infinity) masked = Where(upper, nothing, scaled)
        shares = Softmax<axis = 2>(masked) mixed = MatMul(shares, vs) out = MatMul(mixed, o) y = Add(out, x)
    }
    """
    return onnx_text.model(text, opset=17)


def upsampling() -> onnx.ModelProto:
    """Encoder and decoder: resized, padded and transposed convolutions, as in segmentation and super resolution."""
    text = """
    segments (float[n,3,32,32] image) => (float[n,4,64,64] map)
    <float[16,3,3,3] w1, float[16,16,3,3] w2, float[8,16,3,3] w3, float[8,4,2,2] w4, float[4] scales = {1, 1, 2, 2}>
    {
        c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(image, w1)
        r1 = LeakyRelu<alpha = 0.1>(c1) c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r1, w2)
        r2 = Relu(c2) resized = Upsample(r2, scales) padded = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1]>(resized)
        c3 = Conv<kernel_shape = [3, 3]>(padded, w3) r3 = Relu(c3)
        map = ConvTranspose<kernel_shape = [2, 2], strides = [2, 2]>(r3, w4)
    }
    """
    return onnx_text.model(text, opset=9)


def branch_and_loop(opset: int) -> onnx.ModelProto:
    """An If whose branches hold convolutions and read weights from outside, and a Loop that multiplies by one."""
    text = """
    controlled (float[1,3,24,24] image) => (float[1,16] scores)
    <float[16,3,3,3] w, float[16,16,3,3] shared, float[16,16] step, float zero = {0}, int64 trips = {3}, bool yes = {1}>
    {
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, w)
        r = Relu(c)
        total = ReduceSum<keepdims = 0>(r)
        positive = Greater(total, zero)
        chosen = If(positive) <
            then_branch = then () => (float[1,16,24,24] then_y) {
                then_c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r, shared)
                then_y = Relu(then_c)
            },
            else_branch = otherwise () => (float[1,16,24,24] else_y) { else_y = Neg(r) }
        >
        again = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(chosen, shared)
        peaks = GlobalMaxPool(again)
        flat = Flatten(peaks)
        after = Loop(trips, yes, flat) <
            body = body (int64 i, bool go, float[a,b] state) => (bool go_on, float[a,b] next) {
                product = MatMul(state, step)
                next = Tanh(product)
                go_on = Identity(go)
            }
        >
        scores = MatMul(after, step)
    }
    """
    return onnx_text.model(text, opset=opset)


def with_weights_as_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Store every weight in a Constant node, as some exporters do."""
    nodes = [
        onnx.NodeProto(op_type="Constant", output=[tensor.name], attribute=[helper.make_attribute("value", tensor)])
        for tensor in proto.graph.initializer
    ]
    nodes += proto.graph.node
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    return proto


def with_weights_as_inputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """List every weight among the inputs, as files before IR version 4 had to."""
    proto.ir_version = min(proto.ir_version, 4)
    proto.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in proto.graph.initializer
    )
    return proto


def with_number_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Name every tensor but inputs and outputs by a number, and some like what a quantizer would add to another."""
    kept = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    names = [n for n in dict.fromkeys(_tensor_names(proto.graph)) if n and n not in kept]
    endings = ("", "_scale", "_zero_point", "_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output")
    new = {name: f"{100 + place // len(endings)}{endings[place % len(endings)]}" for place, name in enumerate(names)}
    for node in proto.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for tensor in proto.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    del proto.graph.value_info[:]
    return proto


def _tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
