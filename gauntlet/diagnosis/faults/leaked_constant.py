"""Constants that an exporter turned into required inputs."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.diagnosis.context import ModelContext
from gauntlet.diagnosis.findings import Finding
from gauntlet.onnx_model.graph import all_nodes, format_type, required_inputs, tensor_shape

WEIGHTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "BatchNormalization": (1, 2, 3, 4)}
"""Input positions at which an operator reads trained weights."""


def find(context: ModelContext) -> Finding | None:
    """Check for required inputs that are constants."""
    leaked = leaked_inputs(context)
    if not leaked:
        return None
    unread = _unread(context.graph)
    bound = stored_values(context)
    lacking = [v for v in leaked if v.name not in unread and v.name not in bound]
    named = ", ".join(f"'{v.name}' {format_type(v)}" for v in leaked[:3]) + (" ..." if len(leaked) > 3 else "")
    reason = (
        "its shape is fixed while another input has a dynamic batch"
        if _found_by_shape_alone(context)
        else "no caller provides it"
    )
    reason = "no node reads it" if leaked[0].name in unread else reason
    values = ", ".join(f"'{v.name}'" for v in lacking[:3])
    bind = f"bind it with --fix --constants FILE.npz, which holds its value as an array named {values}"
    return Finding(
        fault="leaked_constant",
        cause=f"a constant became a required input: {named} ({reason})",
        fix=bind if lacking else "remove it from the inputs with --fix; its value is available",
        fixable=not lacking,
        severity="warning" if _found_by_shape_alone(context) and not any(v.name in unread for v in leaked) else "error",
    )


def leaked_inputs(context: ModelContext) -> list[onnx.ValueInfoProto]:
    """Return the required inputs that are probably constants.

    A signature, samples, or given constants decide. Without them: inputs that no node reads, that a node reads as
    weights, and floats of fixed shape where another input has a dynamic first axis.
    """
    inputs = required_inputs(context.graph)
    declared = {spec.name for spec in context.signature.inputs} if context.signature else set()
    known = declared or {i.name for i in inputs if i.name in context.data}
    if known & {i.name for i in inputs}:
        return [i for i in inputs if i.name not in known]
    sure = _certain(context)
    found = [i for i in inputs if i.name in sure or _looks_constant(i, inputs)]
    return found if len(found) < len(inputs) else []  # at least one must be a real input


def stored_values(context: ModelContext) -> NamedArrays:
    """Return the available values of leaked inputs: the caller's, or of an unused initializer of the same name."""
    read = {name for node in all_nodes(context.graph) for name in node.input}
    spare = {_plain(t.name): t for t in context.graph.initializer if t.name not in read}
    given = {_plain(name): array for name, array in context.constants.items()}
    values: NamedArrays = {}
    for value in leaked_inputs(context):
        name = _plain(value.name)
        if name in given:
            values[value.name] = given[name]
        elif name in spare and spare[name].data_location != onnx.TensorProto.EXTERNAL:
            values[value.name] = numpy_helper.to_array(spare[name])
    return values


def fix(context: ModelContext) -> str:
    """Bind leaked inputs to their values, or drop those that no node reads, in place; return what was done.

    Raises:
        StageError: when a value is missing or has another shape.
    """
    graph, values, unread = context.graph, stored_values(context), _unread(context.graph)
    leaked = leaked_inputs(context)
    for value in leaked:
        graph.input.remove(value)
        if value.name in unread:
            continue
        if value.name not in values:
            raise StageError(f"no value for '{value.name}' {format_type(value)}; give it with --constants FILE.npz")
        array = values[value.name].astype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        shape = tensor_shape(value)
        if shape is not None and not _fits(array.shape, shape):
            raise StageError(f"the value for '{value.name}' has the shape {array.shape}; expected {format_type(value)}")
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), value.name))
    dropped = sum(v.name in unread for v in leaked)
    done = [f"bound {len(leaked) - dropped} as initializers"] if dropped < len(leaked) else []
    done += [f"dropped {dropped} unused"] if dropped else []
    return f"leaked constants: {', '.join(done)}"


def _fits(shape: tuple[int, ...], declared: tuple[object, ...]) -> bool:
    same = len(shape) == len(declared)
    return same and all(not isinstance(d, int) or d == n for n, d in zip(shape, declared, strict=True))


def _plain(name: str) -> str:
    """Return a tensor's name without TensorFlow's output index."""
    return name.removesuffix(":0")


def _unread(graph: onnx.GraphProto) -> set[str]:
    read = {name for node in all_nodes(graph) for name in node.input} | {o.name for o in graph.output}
    return {i.name for i in required_inputs(graph)} - read


def _read_as_weights(graph: onnx.GraphProto) -> set[str]:
    return {
        name
        for node in all_nodes(graph)
        for place, name in enumerate(node.input)
        if place in WEIGHTS.get(node.op_type, ())
    }


def _certain(context: ModelContext) -> set[str]:
    given = {_plain(name) for name in context.constants}
    named = {i.name for i in required_inputs(context.graph) if _plain(i.name) in given}
    return _unread(context.graph) | _read_as_weights(context.graph) | named


def _looks_constant(value: onnx.ValueInfoProto, inputs: list[onnx.ValueInfoProto]) -> bool:
    shape = tensor_shape(value)
    if shape is None or any(not isinstance(axis, int) for axis in shape):
        return False
    others = (tensor_shape(other) for other in inputs if other.name != value.name)
    is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    return is_float and any(other and not isinstance(other[0], int) for other in others)


def _found_by_shape_alone(context: ModelContext) -> bool:
    """Return whether the leaked inputs were found by their shapes alone."""
    sure = _certain(context)
    return not (context.signature or context.data) and not any(v.name in sure for v in leaked_inputs(context))
