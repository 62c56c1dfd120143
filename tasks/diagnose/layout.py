"""NHWC fed with NCHW, or the other way round: pictures whose channels lie where the model does not look for them."""

from dataclasses import dataclass

import onnx
from onnx import helper

from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding, Layout
from tasks.runtime.graph import axes, label, nodes, required_inputs, text_of_axes

PERMUTATION: dict[tuple[int, ...], Layout] = {(0, 1, 2, 3): "NCHW", (0, 3, 1, 2): "NHWC"}
"""Which axes of the input become N, C, H and W of the convolution, and what layout that makes the input's."""
FROM: dict[Layout, tuple[int, ...]] = {"NHWC": (0, 3, 1, 2), "NCHW": (0, 2, 3, 1)}
"""The transposition from this layout to the other one."""
OTHER: dict[Layout, Layout] = {"NHWC": "NCHW", "NCHW": "NHWC"}
SAME_SHAPE = {"Add", "Sub", "Mul", "Div", "Cast", "Identity", "Neg", "Clip", "Relu", "Pad"}
SAME_SHAPE |= {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True)
class Picture:
    """An input that a convolution reads: the layout that it takes, and how many channels."""

    value: onnx.ValueInfoProto
    takes: Layout
    channels: int | None
    reader: str


def find(clues: Clues) -> Finding | None:
    """Compare what each picture input takes with what it gets."""
    for picture in pictures(clues.graph):
        given, how = _given(picture, clues)
        if given is None or given == picture.takes:
            continue
        place = 1 if picture.takes == "NCHW" else 3
        channels = (
            f"{picture.channels} channels on axis {place}, as {picture.reader} reads it" if picture.channels else ""
        )
        return Finding(
            fault="wrong_layout",
            cause=f"'{picture.value.name}' takes {picture.takes} ({channels}), and {how} {given}",
            fix=f"transpose before the call (numpy: x.transpose{FROM[given]}), "
            f"or let --fix put the transposition in front, so that the model takes {given}",
            fixable=True,
        )
    return None


def unchecked(clues: Clues) -> str | None:
    """Return why nothing can be said about the layout, or None where something can."""
    found = pictures(clues.graph)
    if not found:
        return "no input is a picture that a convolution reads"
    if all(_given(picture, clues)[0] is None for picture in found):
        return "say what the caller gives with --data or --layout"
    return None


def fix(clues: Clues) -> str:
    """Put a transposition behind each such input, in place; return what was done."""
    done = []
    for picture in pictures(clues.graph):
        given, _ = _given(picture, clues)
        if given is not None and given != picture.takes:
            _transpose(clues.graph, picture, given)
            done.append(picture.value.name)
    return f"'{done[0]}'{' and others' if len(done) > 1 else ''} is transposed inside the model now"


def pictures(graph: onnx.GraphProto) -> list[Picture]:
    """Return the inputs that reach a convolution, through nothing but arithmetic and transpositions."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input[: 1 if "Conv" in node.op_type else None]:
            readers.setdefault(name, []).append(node)
    weights = {t.name: tuple(t.dims) for t in graph.initializer}
    dequantised = {
        n.output[0]: weights[n.input[0]]
        for n in graph.node
        if n.op_type == "DequantizeLinear" and n.input and n.input[0] in weights
    }
    found = (_follow(i, readers, weights | dequantised) for i in required_inputs(graph) if len(axes(i) or ()) == 4)
    return [picture for picture in found if picture is not None]


def _follow(
    value: onnx.ValueInfoProto, readers: dict[str, list[onnx.NodeProto]], weights: dict[str, tuple[int, ...]]
) -> Picture | None:
    waiting: list[tuple[str, tuple[int, ...]]] = [(value.name, (0, 1, 2, 3))]
    seen: set[str] = set()
    while waiting:
        name, order = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for node in readers.get(name, []):
            if node.op_type in ("Conv", "ConvTranspose") and order in PERMUTATION:
                return Picture(value, PERMUTATION[order], _channels(node, weights), label(node))
            if node.op_type == "Transpose":
                turn = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), ())
                if sorted(turn) == [0, 1, 2, 3]:
                    waiting.append((node.output[0], tuple(order[axis] for axis in turn)))
            elif node.op_type in SAME_SHAPE and node.output:
                waiting.append((node.output[0], order))
    return None


def _channels(node: onnx.NodeProto, weights: dict[str, tuple[int, ...]]) -> int | None:
    shape = weights.get(node.input[1]) if len(node.input) > 1 else None
    if not shape or len(shape) < 2:
        return None
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    return shape[0] if node.op_type == "ConvTranspose" else shape[1] * groups


def _given(picture: Picture, clues: Clues) -> tuple[Layout | None, str]:
    """Return the layout of what the input gets, and who says so."""
    if clues.layout is not None:
        return clues.layout, "the caller gives"
    data = clues.data.get(picture.value.name)
    if data is not None and data.ndim == 4:
        seen = _layout_of(data.shape, picture)
        if seen is not None:
            return seen, f"the data has the shape {text_of_axes(data.shape)}, which is"
    if clues.signature is not None and clues.signature.layout != "none":
        return clues.signature.layout, "the model's signature promises"
    return None, ""


def _layout_of(shape: tuple[int, ...], picture: Picture) -> Layout | None:
    """Tell by the number of channels, and where it stands on both sides, by the declared height and width."""
    if picture.channels is not None and (shape[1] == picture.channels) != (shape[3] == picture.channels):
        return "NCHW" if shape[1] == picture.channels else "NHWC"
    declared = axes(picture.value) or ()
    turned = tuple(shape[axis] for axis in FROM[OTHER[picture.takes]])
    as_is, other = _agrees(shape, declared), _agrees(turned, declared)
    return None if as_is == other else picture.takes if as_is else OTHER[picture.takes]


def _agrees(shape: tuple[int, ...], declared: tuple[object, ...]) -> bool:
    return all(not isinstance(d, int) or d == n for n, d in list(zip(shape, declared, strict=True))[1:])


def _transpose(graph: onnx.GraphProto, picture: Picture, given: Layout) -> None:
    outer, inner = picture.value.name, f"{picture.value.name}_{picture.takes.lower()}"
    for node in nodes(graph):
        node.input[:] = [inner if name == outer else name for name in node.input]
    graph.node.insert(0, helper.make_node("Transpose", [outer], [inner], f"{outer}_transposed", perm=FROM[given]))
    dims = [type(d).FromString(d.SerializeToString()) for d in picture.value.type.tensor_type.shape.dim]
    back = FROM[picture.takes]
    for dim, axis in zip(picture.value.type.tensor_type.shape.dim, back, strict=True):
        dim.CopyFrom(dims[axis])
    for value in [v for v in graph.value_info if v.name == outer]:
        graph.value_info.remove(value)
