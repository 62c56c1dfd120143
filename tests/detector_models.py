"""Small detectors with the outputs of well-known ones, written as text."""

import numpy as np
import onnx
import onnx_text

SIDE, STRIDE, CLASSES = 64, 8, 6
CELLS = (SIDE // STRIDE) ** 2


def yolov8(*, transposed: bool = False, batch: str = "n", scale: float = 3.0) -> onnx.ModelProto:
    """A detector with one output, [n, 4 + classes, boxes]: boxes in pixels of the input, and probabilities.

    `scale` is that of the logits of the classes, which are low for nearly all boxes.
    """
    rows, columns = np.mgrid[: SIDE // STRIDE, : SIDE // STRIDE]
    grid = np.stack([columns, rows]).reshape(1, 2, CELLS)
    last = "moved = Concat<axis = 1>(xy, wh, scores) output0 = Transpose<perm = [0, 2, 1]>(moved)"
    shape = f"{CELLS},{4 + CLASSES}" if transposed else f"{4 + CLASSES},{CELLS}"
    return onnx_text.model(
        f"""
        yolo (float[{batch},3,{SIDE},{SIDE}] images) => (float[{batch},{shape}] output0)
        <float[16,3,3,3] w1, float[24,16,3,3] w2, float[24,24,3,3] w3, float[{4 + CLASSES},24,1,1] head,
         int64[3] flat = {{0, {4 + CLASSES}, -1}}, int64[3] parts = {{2, 2, {CLASSES}}}, float[1,2,{CELLS}] grid,
         float stride = {{{STRIDE}}}, float scale = {{{scale}}}, float bias = {{-4}}>
        {{
            c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(images, w1)
            r1 = Relu(c1)
            c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(r1, w2)
            r2 = Relu(c2)
            c3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(r2, w3)
            r3 = Relu(c3)
            raw = Conv<kernel_shape = [1, 1]>(r3, head)
            cells = Reshape(raw, flat)
            centers, sizes, classes = Split<axis = 1>(cells, parts)
            inside = Sigmoid(centers)
            placed = Add(inside, grid)
            xy = Mul(placed, stride)
            grown = Exp(sizes)
            wh = Mul(grown, stride)
            scaled = Mul(classes, scale)
            logits = Add(scaled, bias)
            scores = Sigmoid(logits)
            {last if transposed else "output0 = Concat<axis = 1>(xy, wh, scores)"}
        }}
        """,
        {"grid": grid.astype(np.float32)},
    )


def images(count: int, seed: int = 0) -> np.ndarray:
    """Return blurred noise of strong contrast, shape (n, 3, height, width)."""
    coarse = np.random.default_rng(seed).normal(size=(count, 3, SIDE // 4, SIDE // 4)) * 3
    return coarse.repeat(4, axis=2).repeat(4, axis=3).astype(np.float32)
