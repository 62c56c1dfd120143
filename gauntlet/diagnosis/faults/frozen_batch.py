"""Frozen batch size: in the declared shape, or in a Reshape whose constant shape contains it.

The fix makes the axis dynamic and removes the batch size from those Reshapes.
"""

from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.diagnosis.context import ModelContext
from gauntlet.diagnosis.faults import leaked_constant
from gauntlet.diagnosis.findings import Finding
from gauntlet.onnx_model.graph import (
    Dim,
    Shape,
    format_shape,
    inferred_shapes,
    node_label,
    required_inputs,
    tensor_shape,
)

EXPORT = "export with a named batch axis (PyTorch: dynamic_axes or dynamic_shapes)"
MAX_BATCH = 1 << 20
"""A larger first axis is not taken for a batch."""
MAX_HIDDEN = 64
NAME = "batch"
Shapes = dict[str, tuple[int, ...]]


@dataclass
class BatchRuns:
    """What happened at each batch size: the shapes of the outputs, or the runtime's error message."""

    shapes: dict[int, Shapes] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def find(context: ModelContext) -> Finding | None:
    """Check the declared shapes."""
    values = frozen_values(context)
    if not values:
        return None
    value = values[0]
    first = _first(value)
    return Finding(
        fault="frozen_batch",
        cause=f"'{value.name}' {format_shape(tensor_shape(value))}: the first axis is fixed at {first}",
        fix=f"{EXPORT}, or make it dynamic with --fix",
        fixable=True,
    )


def frozen_values(context: ModelContext) -> list[onnx.ValueInfoProto]:
    """Return the inputs and outputs whose first axis is fixed and should be dynamic.

    A signature declares which those are. Without one, a model has no batch axis when one input has a dynamic first axis
    (the others are then parameters), and vectors and scalars count as parameters too.
    """
    graph = context.graph
    inputs = required_inputs(graph)
    if context.signature is not None:
        specs = (*context.signature.inputs, *context.signature.outputs)
        dynamic = {spec.name for spec in specs if spec.shape and isinstance(spec.shape[0], str)}
        return [v for v in (*inputs, *graph.output) if v.name in dynamic and _fixed(v)]
    leaked = {value.name for value in leaked_constant.leaked_inputs(context)}
    inputs = [i for i in inputs if i.name not in leaked and len(tensor_shape(i) or ()) >= 2]
    return [i for i in inputs if _fixed(i)] if all(_fixed(i) for i in inputs) else []


def find_hidden(context: ModelContext, runs: BatchRuns) -> Finding | None:
    """Check whether a batch that is declared dynamic works at several sizes."""
    works = sorted(runs.shapes)
    if not works:
        return None
    base = works[0]
    culprit = next(
        (f"; {node_label(n)} has {base} as a constant in its shape" for n in reshapes_to(context.graph, base)), ""
    )
    wrong = _mixed(runs, base)
    failure = next(iter(runs.failures.items()), None)
    # A call may fail for other reasons than the batch; a Reshape with a constant batch size rules them out.
    if failure and (culprit or base == 1):
        symptom = f"batch {base} runs and batch {failure[0]} does not ({failure[1]})"
    elif wrong:
        symptom = wrong
    else:
        return None
    fix = f"use -1 or 0 for the batch in that Reshape and export again, or rewrite it with --fix (then {EXPORT})"
    return Finding(
        fault="frozen_batch",
        cause=f"the batch is declared dynamic and is not: {symptom}{culprit}",
        fix=fix.partition(" (then")[0],
        fixable=bool(culprit),
    )


def _mixed(runs: BatchRuns, base: int) -> str:
    """Describe an output that mixes samples: it has the expected number of values in another shape, or return ''."""
    for batch, shapes in runs.shapes.items():
        for name, shape in shapes.items():
            alone = runs.shapes[base].get(name, ())
            if batch == base or not alone or alone[0] != base or shape[:1] == (batch,):
                continue
            if prod(shape) * base == prod(alone) * batch:
                return f"at batch {batch}, '{name}' has the shape {shape}; expected {(batch, *alone[1:])}"
    return ""


def reshapes_to(graph: onnx.GraphProto, batch: int) -> list[onnx.NodeProto]:
    """Return the Reshape nodes whose constant shape starts with this batch size and has more axes."""
    shapes = constant_shapes(graph)
    return [n for n in graph.node if _reshapes_by(n, shapes) and shapes[n.input[1]][0] == batch]


def hidden_sizes(graph: onnx.GraphProto) -> list[int]:
    """Return the constant first axes of Reshapes, from 2 to `MAX_HIDDEN`, that may be a batch size."""
    shapes = constant_shapes(graph)
    firsts = {shapes[n.input[1]][0] for n in graph.node if _reshapes_by(n, shapes)}
    return sorted(first for first in firsts if 1 < first <= MAX_HIDDEN)


def _reshapes_by(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> bool:
    return node.op_type == "Reshape" and len(node.input) > 1 and len(shapes.get(node.input[1], [])) > 1


def constant_shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return the values of constant int64 vectors that are stored in the model file itself."""
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


def _first(value: onnx.ValueInfoProto) -> Dim:
    return (tensor_shape(value) or (None,))[0]


def _fixed(value: onnx.ValueInfoProto) -> bool:
    first = _first(value)
    return isinstance(first, int) and first <= MAX_BATCH


def fix(context: ModelContext, batch: int) -> str:
    """Make the batch dynamic, in place; return what was done. `batch` is the batch size with which the model runs."""
    graph = context.graph
    frozen = frozen_values(context)
    firsts = [_first(v) for v in (*frozen, *required_inputs(graph))]
    name = next((a for a in firsts if isinstance(a, str)), NAME)
    for value in frozen:
        _rename(value, name)
    del graph.value_info[:]  # what was inferred from the frozen batch
    outputs = list(graph.output)
    for output in outputs:
        if _first(output) == batch:
            _rename(output, name)
    rewritten = _free_reshapes(context.proto, batch, name)
    reshapes = f", and removed its size from {rewritten} Reshape{'s' if rewritten != 1 else ''}" if rewritten else ""
    return f"made the batch axis dynamic ('{name}'){reshapes}"


def _rename(value: onnx.ValueInfoProto, name: str) -> None:
    value.type.tensor_type.shape.dim[0].dim_param = name


def _free_reshapes(proto: onnx.ModelProto, batch: int, name: str) -> int:
    """Rewrite the Reshapes that the batch reaches, in graph order; return how many."""
    graph = proto.graph
    rewritten = 0
    bare = onnx.ModelProto()
    while candidates := reshapes_to(graph, batch):
        bare.CopyFrom(proto)
        for output in bare.graph.output:  # a declared shape would hide the inferred one
            output.type.tensor_type.ClearField("shape")
        known = inferred_shapes(bare, through_values=True)
        reached = [n for n in candidates if name in known.get(n.input[0], ())]
        for node in reached:
            _free(graph, node, known[node.input[0]], name, rewritten)
            rewritten += 1
        if not reached:
            break
    return rewritten


def _free(graph: onnx.GraphProto, node: onnx.NodeProto, data: Shape, name: str, number: int) -> None:
    """Give a Reshape its own shape, in which the batch is copied (0) or inferred (-1)."""
    shape = constant_shapes(graph)[node.input[1]]
    keeps_zero = any(a.name == "allowzero" and a.i for a in node.attribute)
    if data[0] == name and not keeps_zero:
        shape[0] = 0
    elif -1 not in shape:
        shape[0] = -1
    else:  # -1 is in use: it can move to the batch only if the size it stands for is known
        rest = [axis for axis in data[1:] if isinstance(axis, int)]
        fixed = int(np.prod([n for n in shape[1:] if n > 0]))
        if len(rest) == len(data) - 1 and fixed and int(np.prod(rest)) % fixed == 0:
            shape = [int(np.prod(rest)) // fixed if n == -1 else n for n in shape]
        shape[0] = -1
    own = f"{node.input[1]}_any_batch_{number}"
    graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), own))
    node.input[1] = own
