"""NHWC fed with NCHW, or the other way round: images with channels on another axis than the model expects."""

from dataclasses import dataclass

import onnx
from onnx import helper

from gauntlet.core.arrays import fits_shape
from gauntlet.onnx_model.graph import all_nodes, format_shape, node_label, required_inputs, tensor_shape
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding, Layout

PERMUTATION: dict[tuple[int, ...], Layout] = {(0, 1, 2, 3): "NCHW", (0, 3, 1, 2): "NHWC"}
"""Input axes that become N, C, H and W of the convolution -> layout of the input."""
FROM: dict[Layout, tuple[int, ...]] = {"NHWC": (0, 3, 1, 2), "NCHW": (0, 2, 3, 1)}
"""The transposition from this layout to the other one."""
OTHER: dict[Layout, Layout] = {"NHWC": "NCHW", "NCHW": "NHWC"}
SAME_SHAPE = {"Add", "Sub", "Mul", "Div", "Cast", "Identity", "Neg", "Clip", "Relu", "Pad"}
SAME_SHAPE |= {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True)
class ImageInput:
    """An image input that a convolution reads: its layout and number of channels."""

    value: onnx.ValueInfoProto
    layout: Layout
    channels: int | None
    reader: str


def find(context: ModelContext) -> Finding | None:
    """Compare the layout that each image input expects with the one it gets."""
    for image, layout, source in _mismatches(context):
        axis = 1 if image.layout == "NCHW" else 3
        channels = f"{image.channels} channels on axis {axis}, as {image.reader} reads it" if image.channels else ""
        cause = f"'{image.value.name}' expects {image.layout} ({channels}), and {source} {layout}"
        fix = f"transpose before the call (numpy: x.transpose{FROM[layout]}), "
        fix += f"or insert the Transpose with --fix, so that the model expects {layout}"
        return Finding(fault="wrong_layout", cause=cause, fix=fix, fixable=True)
    return None


def unchecked(context: ModelContext) -> str | None:
    """Return why the layout cannot be checked, or None where it can."""
    images = image_inputs(context.graph)
    if not images:
        return "no convolution reads an image input"
    if all(_given(image, context)[0] is None for image in images):
        return "the layout of the inputs is unknown: give --data or --layout"
    return None


def fix(context: ModelContext) -> str:
    """Insert a Transpose after each input of the wrong layout, in place; return what was done."""
    mismatches = _mismatches(context)
    for image, layout, _ in mismatches:
        _transpose(context.graph, image, layout)
    more = " and others" if len(mismatches) > 1 else ""
    return f"'{mismatches[0][0].value.name}'{more} is now transposed inside the model"


def _mismatches(context: ModelContext) -> list[tuple[ImageInput, Layout, str]]:
    cases = [(image, *_given(image, context)) for image in image_inputs(context.graph)]
    return [(image, layout, source) for image, layout, source in cases if layout is not None and layout != image.layout]


def image_inputs(graph: onnx.GraphProto) -> list[ImageInput]:
    """Return the 4-D inputs that reach a convolution through element-wise operators and transpositions alone."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input[: 1 if "Conv" in node.op_type else None]:
            readers.setdefault(name, []).append(node)
    weights = {t.name: tuple(t.dims) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    images = [i for i in required_inputs(graph) if len(tensor_shape(i) or ()) == 4]
    return [image for i in images if (image := _follow(i, readers, weights))]


def _follow(
    value: onnx.ValueInfoProto, readers: dict[str, list[onnx.NodeProto]], weights: dict[str, tuple[int, ...]]
) -> ImageInput | None:
    waiting: list[tuple[str, tuple[int, ...]]] = [(value.name, (0, 1, 2, 3))]
    seen: set[str] = set()
    while waiting:
        name, order = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for node in readers.get(name, []):
            if node.op_type in ("Conv", "ConvTranspose") and order in PERMUTATION:
                return ImageInput(value, PERMUTATION[order], _channels(node, weights), node_label(node))
            if node.op_type == "Transpose":
                perm = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), ())
                if sorted(perm) == [0, 1, 2, 3]:
                    waiting.append((node.output[0], tuple(order[axis] for axis in perm)))
            elif node.op_type in SAME_SHAPE and node.output:
                waiting.append((node.output[0], order))
    return None


def _channels(node: onnx.NodeProto, weights: dict[str, tuple[int, ...]]) -> int | None:
    shape = weights.get(node.input[1]) if len(node.input) > 1 else None
    if not shape or len(shape) < 2:
        return None
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    return shape[0] if node.op_type == "ConvTranspose" else shape[1] * groups


def _given(image: ImageInput, context: ModelContext) -> tuple[Layout | None, str]:
    """Return the layout of the data that the input gets, and where that is known from."""
    if context.layout is not None:
        return context.layout, "the caller gives"
    data = context.data.get(image.value.name)
    if data is not None and data.ndim == 4 and (layout := _layout_of(data.shape, image)):
        return layout, f"the data has the shape {format_shape(data.shape)}, which is"
    if context.signature is not None and context.signature.layout != "none":
        return context.signature.layout, "the model's signature declares"
    return None, ""


def _layout_of(shape: tuple[int, ...], image: ImageInput) -> Layout | None:
    """Return the layout by the number of channels or, where that is ambiguous, by the declared height and width."""
    if image.channels is not None and (shape[1] == image.channels) != (shape[3] == image.channels):
        return "NCHW" if shape[1] == image.channels else "NHWC"
    declared = tensor_shape(image.value) or ()
    transposed = tuple(shape[axis] for axis in FROM[OTHER[image.layout]])
    as_is, other = fits_shape(shape, declared, skip=1), fits_shape(transposed, declared, skip=1)
    return None if as_is == other else image.layout if as_is else OTHER[image.layout]


def _transpose(graph: onnx.GraphProto, image: ImageInput, layout: Layout) -> None:
    outer, inner = image.value.name, f"{image.value.name}_{image.layout.lower()}"
    for node in all_nodes(graph):
        node.input[:] = [inner if name == outer else name for name in node.input]
    graph.node.insert(0, helper.make_node("Transpose", [outer], [inner], f"{outer}_transposed", perm=FROM[layout]))
    shape, old = image.value.type.tensor_type.shape, onnx.TensorShapeProto()
    old.CopyFrom(shape)
    for dim, axis in zip(shape.dim, FROM[image.layout], strict=True):
        dim.CopyFrom(old.dim[axis])
    for value in [v for v in graph.value_info if v.name == outer]:
        graph.value_info.remove(value)
