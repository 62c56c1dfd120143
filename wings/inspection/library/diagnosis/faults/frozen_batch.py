"""Frozen batch size: in the declared shape, or in a Reshape whose constant shape contains it.

The fix makes the axis dynamic and removes the batch size from those Reshapes.
"""

from dataclasses import dataclass, field
from math import prod

import onnx

from gauntlet.onnx_model.graph import first_axis, format_shape, node_label, required_inputs, tensor_shape
from gauntlet.onnx_model.normalization.batch import MAX_BATCH, constant_reshapes, free_batch
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.faults import leaked_constant
from wings.inspection.library.diagnosis.findings import Finding


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
    reshapes = [node for node, shape in constant_reshapes(context.graph) if shape[0] == base]
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


def _fixed(value: onnx.ValueInfoProto) -> bool:
    first = first_axis(value)
    return isinstance(first, int) and first <= MAX_BATCH


def fix(context: ModelContext, batch: int) -> str:
    """Make the batch dynamic, in place; return what was done. `batch` is the batch size with which the model runs."""
    return free_batch(context.proto, frozen_values(context), batch)
