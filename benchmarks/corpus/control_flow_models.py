"""Small networks with If, Loop, state and computed weights, written as ONNX text."""

import onnx
from onnx_models import written


def branch_on_value(opset: int = 13) -> onnx.ModelProto:
    """An If whose branches hold convolutions and read tensors and weights from outside."""
    return written(
        """
        branch (float[1,3,24,24] image) => (float[1,6] scores)
        <float[16,3,3,3] w, float[16,16,3,3] shared, float[16,6] head, float zero = {0}>
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
            mean = GlobalAveragePool(again)
            flat = Flatten(mean)
            scores = MatMul(flat, head)
        }
        """,
        opset,
    )


def loop(opset: int = 13) -> onnx.ModelProto:
    """A Loop that multiplies by a weight from outside, between convolutions."""
    return written(
        """
        looped (float[1,8,16,16] x) => (float[1,8] y)
        <int64 trips = {3}, bool yes = {1}, float[8,8,3,3] w, float[8,8] step>
        {
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
            mean = GlobalAveragePool(c)
            flat = Flatten(mean)
            after = Loop(trips, yes, flat) <
                body = body (int64 i, bool go, float[a,b] state) => (bool go_on, float[a,b] next) {
                    product = MatMul(state, step)
                    next = Tanh(product)
                    go_on = Identity(go)
                }
            >
            y = MatMul(after, step)
        }
        """,
        opset,
    )


def initial_state(opset: int = 14) -> onnx.ModelProto:
    """LSTM and GRU with stored initial states and activations given as lists."""
    return written(
        """
        recurrent (float[6,n,20] x) => (float[n,7] scores)
        <float[2,64,20] w, float[2,64,16] r, float[2,128] b, float[1,48,32] gw, float[1,48,16] gr,
         float[16,7] head, int64[1] axis = {0}, int64[3] merged = {6, -1, 32}>
        {
            y = LSTM<hidden_size = 16, direction = "bidirectional",
                activations = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"]>(x, w, r, b)
            t = Transpose<perm = [0, 2, 1, 3]>(y)
            m = Reshape(t, merged)
            z, last = GRU<hidden_size = 16, linear_before_reset = 1, clip = 5.0>(m, gw, gr)
            s = Squeeze(last, axis)
            scores = MatMul(s, head)
        }
        """,
        opset,
    )


def computed_weights(opset: int = 13) -> onnx.ModelProto:
    """A convolution whose weights are computed from an input, and one whose weights pass an Identity."""
    return written(
        """
        hyper (float[n,4,16,16] image, float[8,4,3,3] kernel) => (float[n,8] y)
        <float[8,8,3,3] w>
        {
            soft = Tanh(kernel)
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, soft)
            r1 = Relu(c1)
            same = Identity(w)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r1, same)
            mean = GlobalAveragePool(c2)
            y = Flatten(mean)
        }
        """,
        opset,
    )
