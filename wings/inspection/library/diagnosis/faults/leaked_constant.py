"""Constants that an exporter turned into required inputs."""

from typing import Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import NamedArrays, fits_shape
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_nodes, first_axis, format_type, required_inputs, tensor_shape
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding

WEIGHTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "BatchNormalization": (1, 2, 3, 4)}
"""Input positions at which an operator reads trained weights."""


def find(context: ModelContext) -> Finding | None:
    """Check for required inputs that are constants."""
    leaked = leaked_inputs(context)
    if not leaked:
        return None
    unread, bound, certain = _unread(context.graph), stored_values(context), _certain(context)
    by_shape_alone = not (context.signature or context.data or any(v.name in certain for v in leaked))
    reason = "its shape is fixed while another input has a dynamic batch" if by_shape_alone else "no caller provides it"
    reason = "no node reads it" if leaked[0].name in unread else reason
    named = ", ".join(f"'{v.name}' {format_type(v)}" for v in leaked[:3]) + (" ..." if len(leaked) > 3 else "")
    fix = "remove it from the inputs with --fix; its value is available"
    lacking = [f"'{v.name}'" for v in leaked if v.name not in unread and v.name not in bound]
    if lacking:
        names = ", ".join(lacking[:3])
        fix = f"bind it with --fix --constants FILE.npz, which holds its value as an array named {names}"
    cause = f"a constant became a required input: {named} ({reason})"
    severity: Literal["error", "warning"] = "warning" if by_shape_alone else "error"
    return Finding(fault="leaked_constant", cause=cause, fix=fix, fixable=not lacking, severity=severity)


def leaked_inputs(context: ModelContext) -> list[onnx.ValueInfoProto]:
    """Return the required inputs that are probably constants.

    A signature, samples, or given constants decide. Without them: inputs that no node reads, that a node reads as
    weights, and floats of fixed shape where another input has a dynamic first axis.
    """
    inputs = required_inputs(context.graph)
    names = {i.name for i in inputs}
    declared = {spec.name for spec in context.signature.inputs} if context.signature else set()
    known = declared or names & context.data.keys()
    if known & names:
        return [i for i in inputs if i.name not in known]
    certain = _certain(context)
    leaked = [i for i in inputs if i.name in certain or _looks_constant(i, inputs)]
    return leaked if len(leaked) < len(inputs) else []  # at least one must be a real input


def stored_values(context: ModelContext) -> NamedArrays:
    """Return the available values of leaked inputs: the caller's, or of an unused initializer of the same name."""
    read = {name for node in all_nodes(context.graph) for name in node.input}
    spare = {_plain(t.name): t for t in context.graph.initializer if t.name not in read}
    constants = {_plain(name): array for name, array in context.constants.items()}
    values: NamedArrays = {}
    for value in leaked_inputs(context):
        name = _plain(value.name)
        if name in constants:
            values[value.name] = constants[name]
        elif name in spare and spare[name].data_location != onnx.TensorProto.EXTERNAL:
            values[value.name] = numpy_helper.to_array(spare[name])
    return values


def fix(context: ModelContext) -> str:
    """Bind leaked inputs to their values, or drop those that no node reads, in place; return what was done."""
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
        if shape is not None and not fits_shape(array.shape, shape):
            raise StageError(f"the value for '{value.name}' has the shape {array.shape}; expected {format_type(value)}")
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), value.name))
    dropped = sum(v.name in unread for v in leaked)
    done = [f"bound {len(leaked) - dropped} as initializers"] if dropped < len(leaked) else []
    done += [f"dropped {dropped} unused"] if dropped else []
    return f"leaked constants: {', '.join(done)}"


def _plain(name: str) -> str:
    return name.removesuffix(":0")  # TensorFlow's output index


def _unread(graph: onnx.GraphProto) -> set[str]:
    read = {name for node in all_nodes(graph) for name in node.input} | {o.name for o in graph.output}
    return {i.name for i in required_inputs(graph)} - read


def _certain(context: ModelContext) -> set[str]:
    """Return the inputs that are not read, read as weights, or given as constants."""
    graph, constants = context.graph, {_plain(name) for name in context.constants}
    named = {i.name for i in required_inputs(graph) if _plain(i.name) in constants}
    weights = {n.input[i] for n in all_nodes(graph) for i in WEIGHTS.get(n.op_type, ()) if i < len(n.input)}
    return _unread(graph) | weights | named


def _looks_constant(value: onnx.ValueInfoProto, inputs: list[onnx.ValueInfoProto]) -> bool:
    """Return whether a value is float and of fixed shape while another input has a dynamic first axis."""
    shape = tensor_shape(value)
    is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    if not is_float or shape is None or any(not isinstance(axis, int) for axis in shape):
        return False
    others = [other for other in inputs if other.name != value.name]
    return any(tensor_shape(other) and not isinstance(first_axis(other), int) for other in others)
