"""Batch size frozen: in the declared shape, or deeper, in a Reshape with the batch among its numbers."""

from dataclasses import dataclass, field

import onnx
from onnx import numpy_helper

from tasks.diagnose import constants
from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding
from tasks.runtime.graph import axes, label, required_inputs, text_of_axes

EXPORT = "export with a named batch axis (PyTorch: dynamic_axes or dynamic_shapes)"
MAX_BATCH = 1 << 20
"""A larger first axis is no batch, and most likely no model."""
MAX_HIDDEN = 64
Shapes = dict[str, tuple[int, ...]]


@dataclass
class Runs:
    """What happened at each batch size: the outputs' shapes, or the runtime's complaint."""

    shapes: dict[int, Shapes] = field(default_factory=dict)
    complaints: dict[int, str] = field(default_factory=dict)


def find(clues: Clues) -> Finding | None:
    """Look at the declared shapes."""
    values = frozen_values(clues)
    if not values:
        return None
    value = values[0]
    first = (axes(value) or (None,))[0]
    return Finding(
        fault="frozen_batch",
        cause=f"'{value.name}' {text_of_axes(axes(value))}: the first axis is fixed, so a call takes {first}, no other",
        fix=f"{EXPORT}, or let --fix name it",
        fixable=True,
    )


def frozen_values(clues: Clues) -> list[onnx.ValueInfoProto]:
    """Return the inputs and outputs whose first axis is a number and should be a name.

    A signature knows which those are. Without one, a model has no batch axis when one input has a dynamic first axis
    (the others are then parameters), and vectors and scalars are taken for parameters too.
    """
    graph = clues.graph
    inputs = required_inputs(graph)
    if clues.signature is not None:
        specs = (*clues.signature.inputs, *clues.signature.outputs)
        dynamic = {spec.name for spec in specs if spec.shape and isinstance(spec.shape[0], str)}
        return [v for v in (*inputs, *graph.output) if v.name in dynamic and _fixed(v)]
    leaked = {value.name for value in constants.suspects(clues)}
    inputs = [i for i in inputs if i.name not in leaked and len(axes(i) or ()) >= 2]
    return [i for i in inputs if _fixed(i)] if all(_fixed(i) for i in inputs) else []


def find_hidden(clues: Clues, runs: Runs) -> Finding | None:
    """Look at what the declared dynamic batch does when it is used."""
    works = sorted(runs.shapes)
    if not works:
        return None
    base = works[0]
    culprit = next((f"; {label(n)} has the number {base} in its shape" for n in reshapes_to(clues.graph, base)), "")
    wrong = _mixed(runs, base)
    complaint = next(iter(runs.complaints.items()), None)
    # A complaint of the runtime may have other reasons than the batch; a Reshape that holds it is none of them.
    if complaint and (culprit or base == 1):
        what = f"batch {base} runs and batch {complaint[0]} does not ({complaint[1]})"
    elif wrong:
        what = wrong
    else:
        return None
    fix = f"use -1 or 0 for the batch in that Reshape and export again, or let --fix rewrite it (then {EXPORT})"
    return Finding(
        fault="frozen_batch",
        cause=f"the batch is called dynamic and is not: {what}{culprit}",
        fix=fix.partition(" (then")[0],
        fixable=bool(culprit),
    )


def _mixed(runs: Runs, base: int) -> str:
    """Tell where samples flow together: as many numbers as there should be, and in another shape."""
    for batch, shapes in runs.shapes.items():
        for name, shape in shapes.items():
            alone = runs.shapes[base].get(name, ())
            if batch == base or not alone or alone[0] != base or shape[:1] == (batch,):
                continue
            if _size(shape) * base == _size(alone) * batch:
                return f"at batch {batch}, '{name}' has the shape {shape}, not {(batch, *alone[1:])}"
    return ""


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for axis in shape:
        product *= axis
    return product


def reshapes_to(graph: onnx.GraphProto, batch: int) -> list[onnx.NodeProto]:
    """Return the Reshape nodes whose constant shape starts with this number and has more axes."""
    shapes = constant_shapes(graph)
    return [n for n in graph.node if _reshapes_by(n, shapes) and shapes[n.input[1]][0] == batch]


def hidden_sizes(graph: onnx.GraphProto) -> list[int]:
    """Return the numbers, up to `MAX_HIDDEN`, that a Reshape has where a batch might be meant."""
    shapes = constant_shapes(graph)
    firsts = {shapes[n.input[1]][0] for n in graph.node if _reshapes_by(n, shapes)}
    return sorted(first for first in firsts if 1 < first <= MAX_HIDDEN)


def _reshapes_by(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> bool:
    return node.op_type == "Reshape" and len(node.input) > 1 and len(shapes.get(node.input[1], [])) > 1


def constant_shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return the values of constant whole-number vectors that are stored in the file itself."""
    tensors = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensors |= {name: a.t for a in node.attribute if a.name == "value" for name in node.output}
    return {
        name: [int(n) for n in numpy_helper.to_array(tensor)]
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.INT64
        and len(tensor.dims) == 1
        and tensor.dims[0] <= 16
        and tensor.data_location != onnx.TensorProto.EXTERNAL
    }


def _fixed(value: onnx.ValueInfoProto) -> bool:
    first = (axes(value) or (None,))[0]
    return isinstance(first, int) and first <= MAX_BATCH
