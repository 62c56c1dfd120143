"""Every form of outputs becomes the boxes that a straightforward decoder finds."""

import math

import numpy as np
import onnx_text
import pytest
from onnxruntime import InferenceSession
from pydantic import ValidationError

from gauntlet.core.signature import BoxDecoding
from wings.detection.box_decoding import decode_boxes, has_form, suppress

SIZE = (64, 96)
CLASSES = 3
KINDS = ("fcos", "ssd", "detr", "yolov8", "yolov5", "yolo-nas")


def decoding(kind: str, **changes: object) -> BoxDecoding:
    boxes = None if kind.startswith("yolov") else "b"
    return BoxDecoding.model_validate({"kind": kind, "scores": "s", "boxes": boxes} | changes)


def outputs(kind: str, rng: np.random.Generator, images: int = 3) -> dict[str, np.ndarray]:
    """Return random outputs of a detector, so that some boxes overlap."""
    if kind == "fcos":
        scores, boxes = rng.normal(-2, 2, (images, CLASSES, 8, 12)), rng.normal(0.3, 0.5, (images, 4, 8, 12))
    elif kind in ("ssd", "detr"):
        scores = rng.normal(0, 2, (images, 40, CLASSES + 1))
        scores = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True) if kind == "ssd" else scores
        boxes = rng.uniform(0.1, 0.6, (images, 40, 4))
        if kind == "ssd":
            boxes[:, :, 2:] += boxes[:, :, :2] * 0.5 + 0.05
    else:
        place = rng.uniform(10, 60, (images, 40, 2))
        parts = [place, rng.uniform(5, 30, (images, 40, 2)), rng.uniform(0, 1, (images, 40, CLASSES))]
        if kind == "yolo-nas":
            return {"b": np.concatenate([place, place + parts[1]], axis=2), "s": parts[2]}
        if kind == "yolov5":
            parts.insert(2, rng.uniform(0, 1, (images, 40, 1)))
        whole = np.concatenate(parts, axis=2).astype(np.float32)
        return {"s": whole if kind == "yolov5" else np.ascontiguousarray(whole.transpose(0, 2, 1))}
    return {"s": scores.astype(np.float32), "b": boxes.astype(np.float32)}


def candidates(kind: str, arrays: dict[str, np.ndarray], image: int) -> list[tuple[float, ...]]:
    """Return left, top, right, bottom, class and score of everything that one image's outputs say, one by one."""
    height, width = SIZE
    found = []
    values = {name: array[image].astype(float) for name, array in arrays.items()}
    if kind == "fcos":
        for row in range(8):
            for column in range(12):
                x, y = (column + 0.5) * 8, (row + 0.5) * 8
                a, b, c, d = (math.exp(v) * 8 for v in values["b"][:, row, column])
                scores = [1 / (1 + math.exp(-value)) for value in values["s"][:, row, column]]
                found += [(x - a, y - b, x + c, y + d, k, scores[k]) for k in range(CLASSES)]
    elif kind == "ssd":
        for (a, b, c, d), scores in zip(values["b"], values["s"], strict=True):
            found += [(a * width, b * height, c * width, d * height, k, scores[k + 1]) for k in range(CLASSES)]
    elif kind == "yolo-nas":
        found += [(*b, k, s[k]) for b, s in zip(values["b"], values["s"], strict=True) for k in range(CLASSES)]
    elif kind == "detr":
        for (x, y, w, h), logits in zip(values["b"], values["s"], strict=True):
            shares = [math.exp(v) / sum(math.exp(u) for u in logits) for v in logits][:-1]
            k = shares.index(max(shares))
            x, y, w, h = x * width, y * height, w * width, h * height
            found.append((x - w / 2, y - h / 2, x + w / 2, y + h / 2, k, shares[k]))
    else:
        for entry in values["s"] if kind == "yolov5" else values["s"].T:
            (x, y, w, h), rest = entry[:4], entry[4:]
            scores = [rest[0] * v for v in rest[1:]] if kind == "yolov5" else rest
            found += [(x - w / 2, y - h / 2, x + w / 2, y + h / 2, k, scores[k]) for k in range(CLASSES)]
    limits = (width, height, width, height)
    return [(*(min(max(e, 0), m) for e, m in zip(f[:4], limits, strict=True)), *f[4:]) for f in found]


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    w = max(0, min(one[2], other[2]) - max(one[0], other[0]))
    h = max(0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = ((b[2] - b[0]) * (b[3] - b[1]) for b in (one, other))
    return w * h / (sum(areas) - w * h)


def expected(how: BoxDecoding, arrays: dict[str, np.ndarray], image: int) -> list[tuple[float, ...]]:
    kept: list[tuple[float, ...]] = []
    for box in sorted(candidates(how.kind, arrays, image), key=lambda b: -b[5]):
        repeated = any(k[4] == box[4] and overlap(k, box) > how.max_iou for k in kept) and how.kind != "detr"
        if box[5] >= how.min_score and box[2] > box[0] and box[3] > box[1] and not repeated:
            kept.append(box)
    return kept[: how.max_detections]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"min_score": 0.4, "max_iou": 0.3}, {"max_detections": 5}])
def test_boxes_are_those_of_a_straightforward_decoder(kind: str, changes: dict[str, float]) -> None:
    how, arrays = decoding(kind, **changes), outputs(kind, np.random.default_rng(1))
    assert has_form(how, arrays, CLASSES) == ""
    found = decode_boxes(how, arrays, SIZE)
    assert found.shape == (3, how.max_detections, 6)
    for image in range(3):
        rows = expected(how, arrays, image)
        assert len(rows) > 3
        assert (found[image, len(rows) :, 4] == -1).all()
        np.testing.assert_allclose(found[image, : len(rows)], rows, rtol=1e-5, atol=1e-4)


def test_suppression_keeps_what_torchvisions_keeps() -> None:
    import torch
    from torchvision.ops import batched_nms

    rng = np.random.default_rng(2)
    corners = rng.uniform(0, 50, (200, 2))
    boxes, classes = np.hstack([corners, corners + rng.uniform(5, 40, (200, 2))]), rng.integers(0, 3, 200)
    rows = np.column_stack([boxes, classes, np.linspace(1, 0, 200)])
    kept = batched_nms(*map(torch.from_numpy, (boxes, rows[:, 5].copy(), classes)), 0.5)
    assert suppress(rows, 0.5) == kept.tolist()


ROWS = np.array(
    [
        [
            [0, 0, 20, 20, 0.9, 2],
            [1, 1, 21, 21, 0.8, 2],
            [5, 5, 30, 90, 0.7, 0],
            [0, 0, 9, 9, 0.01, 1],
            [0, 0, 9, 9, 0.9, -1],
        ]
    ]
)
PARTS = {"boxes": "b", "classes": "c"}


def apart(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {"s": rows[:, :, 4], "b": rows[:, :, :4], "c": rows[:, :, 5].astype(np.int64)}


@pytest.mark.parametrize(("names", "arrays"), [({}, {"s": ROWS.astype(np.float32)}), (PARTS, apart(ROWS))])
def test_suppressed_boxes_are_taken_as_they_are_without_the_padding(
    names: dict[str, str], arrays: dict[str, np.ndarray]
) -> None:
    how = BoxDecoding.model_validate({"kind": "suppressed", "scores": "s", "max_iou": 0.1} | names)
    assert has_form(how, arrays, CLASSES) == ""
    found = decode_boxes(how, arrays, SIZE)[0]
    wanted = [[0, 0, 20, 20, 2, 0.9], [1, 1, 21, 21, 2, 0.8], [5, 5, 30, 64, 0, 0.7]]  # cut at the image's edge
    np.testing.assert_allclose(found[:3], wanted, rtol=1e-6)
    assert (found[3:, 4] == -1).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e12])
def test_suppressed_row_whose_class_is_no_number_of_one_is_no_object(number: float) -> None:
    rows = np.concatenate([ROWS, [[[0, 0, 9, 9, 0.9, number]]]], axis=1).astype(np.float32)
    actual, expected = (
        decode_boxes(BoxDecoding(kind="suppressed", scores="s"), {"s": each.astype(np.float32)}, SIZE)
        for each in (rows, ROWS)
    )
    np.testing.assert_array_equal(actual, expected)


def test_suppressed_outputs_of_another_form_are_named() -> None:
    one = BoxDecoding(kind="suppressed", scores="s")
    three = BoxDecoding(kind="suppressed", scores="s", boxes="b", classes="c")
    assert "does not fit s [1, 5, 5]" in has_form(one, {"s": ROWS[:, :, :5]}, CLASSES)
    assert "does not fit" in has_form(three, apart(ROWS) | {"c": np.zeros((1, 4))}, CLASSES)
    for wrong in ({"boxes": "b"}, {"classes": "c"}):
        with pytest.raises(ValidationError, match="give both, or none where one output has all"):
            BoxDecoding.model_validate({"kind": "suppressed", "scores": "s"} | wrong)
    with pytest.raises(ValidationError, match="'ssd' with classes: c; remove it"):
        decoding("ssd", classes="c")


NMS = f"""
    nms (float[1, {4 + CLASSES}, 40] raw) => (float[1, 20, 6] rows)
    <
        int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] all = {{100}},
        int64[1] first = {{0}},
        float half = {{0.5}}, float least = {{0.05}}, int64[1] most = {{20}}, int64[1] flat = {{-1}},
        int64[2] column = {{-1, 1}}, float[20, 6] blank, float[20] zeros
    >
    {{
        turned = Transpose<perm = [0, 2, 1]>(raw)
        middle = Slice(turned, first, two, two)
        size = Slice(turned, two, four, two)
        reach = Mul(size, half)
        low = Sub(middle, reach)
        high = Add(middle, reach)
        boxes = Concat<axis = 2>(low, high)
        scores = Slice(raw, four, all, one)
        kept = NonMaxSuppression(boxes, scores, most, half, least)
        label = Slice(kept, one, two, one)
        place = Slice(kept, two, all, one)
        places = Reshape(place, flat)
        chosen = Gather<axis = 1>(boxes, places)
        pair = Slice(kept, one, all, one)
        points = Squeeze(scores, first)
        values = GatherND(points, pair)
        value = Reshape(values, column)
        name = Cast<to = 1>(label)
        corners = Squeeze(chosen, first)
        found = Concat<axis = 1>(corners, value, name)
        flatvalue = Reshape(value, flat)
        padding = Concat<axis = 0>(flatvalue, zeros)
        best, order = TopK<axis = 0>(padding, most)
        full = Concat<axis = 0>(found, blank)
        ordered = Gather<axis = 0>(full, order)
        rows = Unsqueeze(ordered, first)
    }}
"""


def test_boxes_suppressed_in_the_graph_are_those_that_the_host_keeps() -> None:
    """ONNX's own operators `NonMaxSuppression` and `TopK`, padded to a fixed number of rows."""
    blank = np.zeros((20, 6), np.float32)
    blank[:, 5] = -1
    model = onnx_text.model(NMS, {"blank": blank, "zeros": np.zeros(20)})
    session = InferenceSession(model.SerializeToString())
    arrays = outputs("yolov8", np.random.default_rng(6), images=1)
    [rows] = session.run(["rows"], {"raw": arrays["s"]})
    wanted = decode_boxes(decoding("yolov8", max_detections=20), arrays, SIZE)
    found = decode_boxes(BoxDecoding(kind="suppressed", scores="rows", max_detections=20), {"rows": rows}, SIZE)
    assert (wanted[:, :, 4] >= 0).sum() > 10
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def test_values_that_are_no_numbers_make_no_boxes() -> None:
    arrays = outputs("fcos", np.random.default_rng(3), images=1)
    arrays["s"][:, :, :4] = np.nan
    arrays["b"][:, :, 4:] = np.inf
    found = decode_boxes(decoding("fcos"), arrays, SIZE)
    assert np.isfinite(found).all()
    assert (found[found[:, :, 4] >= 0][:, 2:4] <= SIZE[::-1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_another_form_are_named(kind: str) -> None:
    arrays = outputs(kind, np.random.default_rng(4))
    assert "with 7 classes does not fit" in has_form(decoding(kind), arrays, 7)
    assert "no output 'other'" in has_form(decoding(kind, scores="other"), arrays, CLASSES)


@pytest.mark.parametrize(("kind", "boxes"), [("fcos", None), ("yolov8", "b")])
def test_outputs_that_the_kind_does_not_have_are_refused(kind: str, boxes: str | None) -> None:
    with pytest.raises(ValidationError, match=f"decode.kind '{kind}' with boxes: {boxes}"):
        decoding(kind, boxes=boxes)
