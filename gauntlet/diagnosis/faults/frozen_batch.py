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
    Shape,
    constants,
    first_axis,
    format_shape,
    inferred_shapes,
    int_values,
    node_label,
    required_inputs,
    tensor_shape,
)

MAX_BATCH = 1 << 20
"""A larger first axis is not taken for a batch."""
MAX_HIDDEN = 64


@dataclass
class BatchRuns:
    """What happened at each batch size: the shapes of the outputs, or the runtime's error message."""

    shapes: dict[int, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def find(context: ModelContext) -> Finding | None:
    """Check the declared shapes."""
    for value in frozen_values(context):
        cause = f"'{value.name}' {format_shape(tensor_shape(value))}: the first axis is fixed at {first_axis(value)}"
        fix = "export with a named batch axis (PyTorch: dynamic_axes or dynamic_shapes), or make it dynamic with --fix"
        return Finding(fault="frozen_batch", cause=cause, fix=fix, fixable=True)
    return None


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
    return inputs if all(map(_fixed, inputs)) else []


def find_hidden(context: ModelContext, runs: BatchRuns) -> Finding | None:
    """Check whether a batch that is declared dynamic works at several sizes."""
    if not runs.shapes:
        return None
    base = min(runs.shapes)
    reshapes = [node for node, shape in _constant_reshapes(context.graph) if shape[0] == base]
    symptom = _mixed(runs, base)
    # A call may fail for other reasons than the batch; a Reshape with a constant batch size rules them out.
    if runs.failures and (reshapes or base == 1):
        batch, error = next(iter(runs.failures.items()))
        symptom = f"batch {base} runs and batch {batch} does not ({error})"
    if not symptom:
        return None
    culprit = f"; {node_label(reshapes[0])} has {base} as a constant in its shape" if reshapes else ""
    cause = f"the batch is declared dynamic and is not: {symptom}{culprit}"
    fix = "use -1 or 0 for the batch in that Reshape and export again, or rewrite it with --fix"
    return Finding(fault="frozen_batch", cause=cause, fix=fix, fixable=bool(reshapes))


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


def hidden_sizes(graph: onnx.GraphProto) -> list[int]:
    """Return the constant first axes of Reshapes, from 2 to `MAX_HIDDEN`, that may be a batch size."""
    return sorted({shape[0] for _, shape in _constant_reshapes(graph) if 1 < shape[0] <= MAX_HIDDEN})


def _constant_reshapes(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, list[int]]]:
    """Return the Reshape nodes with a constant shape of several axes, which is stored in the model file itself."""
    shapes = {name: int_values(t) for name, t in constants(graph).items() if _is_shape(t)}
    nodes = [node for node in graph.node if node.op_type == "Reshape" and len(node.input) > 1]
    return [(node, shape) for node in nodes if len(shape := shapes.get(node.input[1], [])) > 1]


def _is_shape(tensor: onnx.TensorProto) -> bool:
    stored = tensor.data_location != onnx.TensorProto.EXTERNAL
    return stored and tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1 and tensor.dims[0] <= 16


def _fixed(value: onnx.ValueInfoProto) -> bool:
    first = first_axis(value)
    return isinstance(first, int) and first <= MAX_BATCH


def fix(context: ModelContext, batch: int) -> str:
    """Make the batch dynamic, in place; return what was done. `batch` is the batch size with which the model runs."""
    graph = context.graph
    frozen = frozen_values(context)
    firsts = [first_axis(v) for v in (*frozen, *required_inputs(graph))]
    name = next((a for a in firsts if isinstance(a, str)), "batch")
    for value in (*frozen, *(output for output in graph.output if first_axis(output) == batch)):
        value.type.tensor_type.shape.dim[0].dim_param = name
    del graph.value_info[:]  # what was inferred from the frozen batch
    rewritten = _free_reshapes(context.proto, batch, name)
    reshapes = f", and removed its size from {rewritten} Reshape{'s' if rewritten != 1 else ''}" if rewritten else ""
    return f"made the batch axis dynamic ('{name}'){reshapes}"


def _free_reshapes(proto: onnx.ModelProto, batch: int, name: str) -> int:
    """Rewrite the Reshapes that the batch reaches, in graph order; return how many."""
    rewritten = 0
    bare = onnx.ModelProto()
    while candidates := [(node, shape) for node, shape in _constant_reshapes(proto.graph) if shape[0] == batch]:
        bare.CopyFrom(proto)
        for output in bare.graph.output:  # a declared shape would hide the inferred one
            output.type.tensor_type.ClearField("shape")
        known = inferred_shapes(bare, through_values=True)
        reached = [(node, shape) for node, shape in candidates if name in known.get(node.input[0], ())]
        for node, shape in reached:
            own = f"{node.input[1]}_any_batch_{rewritten}"
            freed = np.array(_freed(node, shape, known[node.input[0]], name), np.int64)
            proto.graph.initializer.append(numpy_helper.from_array(freed, own))
            node.input[1] = own
            rewritten += 1
        if not reached:
            break
    return rewritten


def _freed(node: onnx.NodeProto, shape: list[int], data: Shape, name: str) -> list[int]:
    """Return a shape for a Reshape of `data` in which the batch is copied (0) or inferred (-1)."""
    keeps_zero = any(a.name == "allowzero" and a.i for a in node.attribute)
    if data[0] == name and not keeps_zero:
        return [0, *shape[1:]]
    if -1 in shape:  # -1 is in use: it can move to the batch only if the size it stands for is known
        rest = [axis for axis in data[1:] if isinstance(axis, int)]
        fixed = prod(n for n in shape[1:] if n > 0)
        if len(rest) == len(data) - 1 and fixed and prod(rest) % fixed == 0:
            shape = [prod(rest) // fixed if n == -1 else n for n in shape]
    return [-1, *shape[1:]]
