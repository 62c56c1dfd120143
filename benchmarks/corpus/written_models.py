"""Small networks written as ONNX text."""

import onnx
from onnx_models import written


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
