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


ROWS = {
    "apart": "float[k,4] boxes, float[k] scores, int64[k] labels",
    "six": "float[k,6] detections",
    "seven": "float[k,7] detections",
    "tensorflow": "float[1,100,4] detection_boxes, float[1,100] detection_scores, float[1,100] detection_classes, "
    "float[1] num_detections",
}
LAST = {
    "apart": "boxes = Identity(corners) labels = Identity(classes_)",
    "six": "detections = Concat<axis = 1>(corners, score, class)",
    "seven": "detections = Concat<axis = 1>(image, corners, class, score)",
    "tensorflow": """
        shares = Div(corners, side) turned = Gather<axis = 1>(shares, top_first) counted = Add(labels_, one)
        found = Shape(kept) missing = Sub(hundred, found) padding = Concat<axis = 0>(first, missing)
        rows = Concat<axis = 0>(first, first, missing, first)
        b = Pad(turned, rows) s = Pad(kept, padding) c = Pad(counted, padding)
        detection_boxes = Unsqueeze(b, first) detection_scores = Unsqueeze(s, first)
        detection_classes = Unsqueeze(c, first) num_detections = Cast<to = 1>(found)""",
}


def suppressed(form: str = "apart", *, most: int = 20, gone: int | None = None, scale: float = 2.0) -> onnx.ModelProto:
    """The same detector, of one image, with the suppression inside: a row for each object, in one of the forms `ROWS`.

    At most `most` boxes of a class stay, and none of the class `gone`.
    """
    proto = yolov8(batch="1", scale=scale)
    known = np.ones((1, CLASSES, 1), np.float32)
    known[:, [] if gone is None else [gone]] = 0
    scores = "scores = Identity(kept)" if form == "apart" else ""
    proto.graph.node[-2].output[0] = "all_scores"  # of the Sigmoid, which the boxes' output reads
    proto.graph.node[-1].input[2] = "all_scores"
    onnx_text.extend(
        proto,
        f"""
        suppression () => ({ROWS[form]})
        <float half = {{0.5}}, float side = {{{SIDE}}}, float one = {{1}},
         int64[1] first = {{0}}, int64[1] last = {{1}}, int64 label = {{1}}, int64 place = {{2}}, int64 zero = {{0}},
         int64[4] top_first = {{1, 0, 3, 2}},
         int64[1] hundred = {{100}}, int64[1] most = {{{most}}}, float[1] overlap = {{0.5}}, float[1] least = {{0.25}},
         float[1,{CLASSES},1] known>
        {{
            reach = Mul(wh, half)
            low = Sub(xy, reach)
            high = Add(xy, reach)
            edges = Concat<axis = 1>(low, high)
            by_row = Transpose<perm = [0, 2, 1]>(edges)
            chosen_scores = Mul(all_scores, known)
            chosen = NonMaxSuppression(by_row, chosen_scores, most, overlap, least)
            classes_ = Gather<axis = 1>(chosen, label)
            places = Gather<axis = 1>(chosen, place)
            all_boxes = Squeeze(by_row, first)
            corners = Gather<axis = 0>(all_boxes, places)
            kept = GatherND(all_scores, chosen)
            labels_ = Cast<to = 1>(classes_)
            numbers = Gather<axis = 1>(chosen, zero)
            images_ = Cast<to = 1>(numbers)
            score = Unsqueeze(kept, last)
            class = Unsqueeze(labels_, last)
            image = Unsqueeze(images_, last)
            {scores}
            {LAST[form]}
        }}
        """,
        weights={"known": known},
    )
    return proto
