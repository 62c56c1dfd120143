"""Small networks written as ONNX text, and the table of all models that are written: name -> function."""

from collections.abc import Callable

import onnx
from control_flow_models import (
    branch_on_input,
    branch_on_value,
    computed_weights,
    initial_state,
    loop,
    scan,
    state,
)
from onnx_models import (
    in_float16,
    quantized,
    with_fixed_batch,
    with_number_names,
    with_weights_as_constants,
    with_weights_as_inputs,
    with_wrong_shapes,
    without_names,
    written,
)


def convolutions(opset: int = 13) -> onnx.ModelProto:
    """Three convolutions with batch norms, a residual sum and a linear head."""
    return written(
        """
        convolutions (float[n,3,32,32] image) => (float[n,10] scores)
        <float[16,3,3,3] w1, float[16] g, float[16] b, float[16] m, float[16] v,
         float[32,16,3,3] w2, float[32,32,3,3] w3, float[32] b3, float[32,10] w4, float[10] b4>
        {
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, w1)
            n1 = BatchNormalization(c1, g, b, m, v)
            r1 = Relu(n1)
            p1 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r1)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p1, w2)
            r2 = Relu(c2)
            c3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r2, w3, b3)
            sum = Add(c3, r2)
            mean = GlobalAveragePool(sum)
            flat = Flatten(mean)
            scores = Gemm(flat, w4, b4)
        }
        """,
        opset,
    )


def products(opset: int = 13) -> onnx.ModelProto:
    """A multilayer perceptron of MatMul and Add."""
    return written(
        """
        products (float[n,64] x) => (float[n,8] scores)
        <float[64,256] w1, float[256] b1, float[256,256] w2, float[256] b2, float[256,8] w3>
        {
            h1 = MatMul(x, w1)
            s1 = Add(h1, b1)
            r1 = Relu(s1)
            h2 = MatMul(r1, w2)
            s2 = Add(h2, b2)
            r2 = Relu(s2)
            scores = MatMul(r2, w3)
        }
        """,
        opset,
    )


def two_inputs_four_outputs(opset: int = 15) -> onnx.ModelProto:
    """An image and a vector in; scores, boxes, a mask and a class number out."""
    return written(
        """
        several (float[n,3,32,32] image, float[n,16] context)
            => (float[n,5] scores, float[n,4] box, float[n,1,16,16] mask, int64[n] label)
        <float[16,3,3,3] w1, float[16,16,3,3] w2, float[1,16,1,1] w3, float[16,16] v, float[32,5] s, float[32,4] b>
        {
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(image, w1)
            r1 = Relu(c1)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r1, w2)
            r2 = Relu(c2)
            logits = Conv<kernel_shape = [1, 1]>(r2, w3)
            mask = Sigmoid(logits)
            mean = GlobalAveragePool(r2)
            flat = Flatten(mean)
            h = MatMul(context, v)
            joined = Concat<axis = 1>(flat, h)
            scores = MatMul(joined, s)
            box = MatMul(joined, b)
            label = ArgMax<axis = 1, keepdims = 0>(scores)
        }
        """,
        opset,
    )


def detector(opset: int = 12) -> onnx.ModelProto:
    """A one-stage detector with a head as in YOLO: boxes and scores decoded and concatenated."""
    return written(
        """
        detector (float[n,3,64,64] images) => (float[n,64,9] output)
        <float[16,3,3,3] w1, float[32,16,3,3] w2, float[48,32,3,3] w3, float[9,48,1,1] head, float[9] bias,
         int64[3] rows = {0, 9, -1}, int64[3] parts = {2, 2, 5}, float[1,64,2] grid, float stride = {8}>
        {
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(images, w1)
            s1 = Sigmoid(c1)
            a1 = Mul(c1, s1)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(a1, w2)
            s2 = Sigmoid(c2)
            a2 = Mul(c2, s2)
            c3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(a2, w3)
            s3 = Sigmoid(c3)
            a3 = Mul(c3, s3)
            raw = Conv<kernel_shape = [1, 1]>(a3, head, bias)
            flat = Reshape(raw, rows)
            cells = Transpose<perm = [0, 2, 1]>(flat)
            SPLIT
            moved = Add(centers, grid)
            xy = Mul(moved, stride)
            grown = Exp(sizes)
            wh = Mul(grown, stride)
            scores = Sigmoid(classes)
            output = Concat<axis = 2>(xy, wh, scores)
        }
        """.replace(
            "SPLIT",
            "centers, sizes, classes = Split<axis = 2>(cells, parts)"
            if opset >= 13
            else "centers, sizes, classes = Split<axis = 2, split = [2, 2, 5]>(cells)",
        ),
        opset,
    )


def detector_with_nms(opset: int = 13) -> onnx.ModelProto:
    """A detector with non-maximum suppression and so an unknown number of boxes."""
    return written(
        """
        detections (float[1,3,48,48] image) => (float[1,36,4] boxes, float[1,3,36] scores, int64[k,3] selected)
        <float[16,3,3,3] w1, float[24,16,3,3] w2, float[7,24,3,3] w3, int64[3] rows = {1, 7, 36},
         int64[2] parts = {4, 3},
         int64 most = {20}, float overlap = {0.5}, float least = {0.1}>
        {
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(image, w1)
            r1 = Relu(c1)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(r1, w2)
            r2 = Relu(c2)
            c3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(r2, w3)
            flat = Reshape(c3, rows)
            corners, classes = Split<axis = 1>(flat, parts)
            boxes = Transpose<perm = [0, 2, 1]>(corners)
            scores = Sigmoid(classes)
            selected = NonMaxSuppression(boxes, scores, most, overlap, least)
        }
        """,
        opset,
    )


def infinite_mask(opset: int = 17) -> onnx.ModelProto:
    """Attention with a mask of minus infinity, as transformers have it."""
    return written(
        """
        attention (float[n,8,32] x) => (float[n,8,32] y)
        <float[32,32] q, float[32,32] k, float[32,32] v, float[32,32] o, float[32] g, float[32] b,
         bool[8,8] upper = {0,1,1,1,1,1,1,1,0,0,1,1,1,1,1,1,0,0,0,1,1,1,1,1,0,0,0,0,1,1,1,1,
                            0,0,0,0,0,1,1,1,0,0,0,0,0,0,1,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,0},
         float zero = {0}, float one = {1}, float root = {5.657}>
        {
            n1 = LayerNormalization(x, g, b)
            qs = MatMul(n1, q)
            ks = MatMul(n1, k)
            vs = MatMul(n1, v)
            kt = Transpose<perm = [0, 2, 1]>(ks)
            products = MatMul(qs, kt)
            scaled = Div(products, root)
            infinity = Div(one, zero)
            nothing = Neg(infinity)
            masked = Where(upper, nothing, scaled)
            shares = Softmax<axis = 2>(masked)
            mixed = MatMul(shares, vs)
            out = MatMul(mixed, o)
            y = Add(out, x)
        }
        """,
        opset,
    )


def tokens(opset: int = 13) -> onnx.ModelProto:
    """Token numbers into an embedding, and two layers."""
    return written(
        """
        tokens (int64[n,12] ids) => (float[n,6] scores)
        <float[100,48] table, float[48,64] w1, float[64,6] w2>
        {
            e = Gather(table, ids)
            m = ReduceMean<axes = [1], keepdims = 0>(e)
            h = MatMul(m, w1)
            r = Relu(h)
            scores = MatMul(r, w2)
        }
        """,
        opset,
    )


def upsampling(opset: int = 9) -> onnx.ModelProto:
    """Encoder and decoder: resized, padded and transposed convolutions, as in segmentation and super resolution."""
    size = 'resized = Resize<mode = "nearest">(r2, none, scales)' if opset > 10 else "resized = Upsample(r2, scales)"
    none = "float[0] none = {}, " if opset > 10 else ""
    pad = "Pad(resized, pads)" if opset > 10 else "Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1]>(resized)"
    pads = "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, " if opset > 10 else ""
    return written(
        f"""
        segments (float[n,3,32,32] image) => (float[n,4,64,64] map)
        <{none}{pads}float[16,3,3,3] w1, float[16,16,3,3] w2, float[8,16,3,3] w3, float[8,4,2,2] w4,
         float[4] scales = {{1, 1, 2, 2}}>
        {{
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(image, w1)
            r1 = LeakyRelu<alpha = 0.1>(c1)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r1, w2)
            r2 = Relu(c2)
            {size}
            padded = {pad}
            c3 = Conv<kernel_shape = [3, 3]>(padded, w3)
            r3 = Relu(c3)
            map = ConvTranspose<kernel_shape = [2, 2], strides = [2, 2]>(r3, w4)
        }}
        """,
        opset,
    )


def no_products(opset: int = 13) -> onnx.ModelProto:
    """Only operators that no recipe quantizes."""
    return written(
        """
        nothing (float[n,16] x) => (float[n,16] y)
        { a = Abs(x) e = Exp(a) l = Log(e) y = Sqrt(l) }
        """,
        opset,
    )


Make = Callable[[], onnx.ModelProto]

WRITTEN: dict[str, Make] = {
    **{f"convolutions-opset{opset}": lambda opset=opset: convolutions(opset) for opset in (9, 11, 13, 17, 20)},
    **{f"products-opset{opset}": lambda opset=opset: products(opset) for opset in (9, 13, 19)},
    "convolutions-weights-as-constants": lambda: with_weights_as_constants(convolutions(12)),
    "convolutions-weights-as-inputs": lambda: with_weights_as_inputs(convolutions(9)),
    "convolutions-number-names": lambda: with_number_names(convolutions(13)),
    "convolutions-wrong-shapes": lambda: with_wrong_shapes(convolutions(13)),
    "convolutions-without-names": lambda: without_names(convolutions(10)),
    "convolutions-float16": lambda: in_float16(convolutions(13)),
    "convolutions-static-int8": lambda: quantized(convolutions(13), static=True),
    "convolutions-dynamic-int8": lambda: quantized(convolutions(13), static=False),
    "convolutions-batch1": lambda: with_fixed_batch(convolutions(11)),
    "products-weights-as-constants": lambda: with_weights_as_constants(products(13)),
    "products-float16": lambda: in_float16(products(13)),
    "products-dynamic-int8": lambda: quantized(products(13), static=False),
    "branch-on-value": branch_on_value,
    "branch-on-value-constants": lambda: with_weights_as_constants(branch_on_value(11)),
    "branch-on-input": branch_on_input,
    "loop": loop,
    "loop-opset11": lambda: loop(11),
    "loop-weights-as-constants": lambda: with_weights_as_constants(loop()),
    "scan": scan,
    "state": state,
    "state-weights-as-constants": lambda: with_weights_as_constants(state()),
    "state-dynamic-int8": lambda: quantized(state(), static=False),
    "initial-state": initial_state,
    "two-inputs-four-outputs": two_inputs_four_outputs,
    "two-inputs-four-outputs-constants": lambda: with_weights_as_constants(two_inputs_four_outputs(12)),
    "detector-opset11": lambda: detector(11),
    "detector-opset17": lambda: detector(17),
    "detector-weights-as-constants": lambda: with_weights_as_constants(detector(12)),
    "detector-with-nms": detector_with_nms,
    "infinite-mask": infinite_mask,
    "tokens": tokens,
    "upsampling-opset9": upsampling,
    "upsampling-opset11": lambda: upsampling(11),
    "upsampling-opset16": lambda: upsampling(16),
    "computed-weights": computed_weights,
    "no-products": no_products,
}
"""Name -> function that makes the model."""
