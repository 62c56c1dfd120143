"""Constants that leaked out of an exporter as inputs that every caller must give."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tasks.diagnose.clues import Arrays, Clues
from tasks.diagnose.finding import Finding
from tasks.errors import StageError
from tasks.runtime.graph import axes, nodes, required_inputs, text_of_type

WEIGHTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "BatchNormalization": (1, 2, 3, 4)}
"""At these places an operator reads what was trained."""


def find(clues: Clues) -> Finding | None:
    """Look for inputs that no caller knows of."""
    leaked = suspects(clues)
    if not leaked:
        return None
    unread = _unread(clues.graph)
    bound = stored_values(clues)
    lacking = [v for v in leaked if v.name not in unread and v.name not in bound]
    named = ", ".join(f"'{v.name}' {text_of_type(v)}" for v in leaked[:3]) + (" ..." if len(leaked) > 3 else "")
    why = "its shape is fixed beside a dynamic batch" if _looks(clues) else "no caller gives it"
    why = "nothing reads it" if leaked[0].name in unread else why
    values = ", ".join(f"'{v.name}'" for v in lacking[:3])
    ask = f"let --fix bind it; its value comes from --constants FILE.npz, an array named {values}"
    return Finding(
        fault="leaked_constant",
        cause=f"a constant became a required input: {named} ({why})",
        fix=ask if lacking else "let --fix take it out of the inputs; its value is at hand",
        fixable=not lacking,
        severity="warning" if _looks(clues) and not any(v.name in unread for v in leaked) else "error",
    )


def suspects(clues: Clues) -> list[onnx.ValueInfoProto]:
    """Return the required inputs that are constants by what is known.

    A signature, samples, or given constants decide. Without any of them: what nothing reads, what is read as a weight,
    and a float of wholly fixed shape beside an input with a dynamic first axis.
    """
    inputs = required_inputs(clues.graph)
    declared = {spec.name for spec in clues.signature.inputs} if clues.signature else set()
    known = declared or {i.name for i in inputs if i.name in clues.data}
    if known & {i.name for i in inputs}:
        return [i for i in inputs if i.name not in known]
    sure = _certain(clues)
    found = [i for i in inputs if i.name in sure or _has_the_looks(i, inputs)]
    return found if len(found) < len(inputs) else []  # somebody must be the input


def stored_values(clues: Clues) -> Arrays:
    """Return the values at hand for the suspects: the caller's, or an unread initializer's of the same name."""
    read = {name for node in nodes(clues.graph) for name in node.input}
    spare = {_plain(t.name): t for t in clues.graph.initializer if t.name not in read}
    given = {_plain(name): array for name, array in clues.constants.items()}
    values: Arrays = {}
    for value in suspects(clues):
        name = _plain(value.name)
        if name in given:
            values[value.name] = given[name]
        elif name in spare and spare[name].data_location != onnx.TensorProto.EXTERNAL:
            values[value.name] = numpy_helper.to_array(spare[name])
    return values


def fix(clues: Clues) -> str:
    """Bind the suspects, or drop those that nothing reads, in place; return what was done.

    Raises:
        StageError: when a value is missing or has another shape.
    """
    graph, values, unread = clues.graph, stored_values(clues), _unread(clues.graph)
    leaked = suspects(clues)
    for value in leaked:
        graph.input.remove(value)
        if value.name in unread:
            continue
        if value.name not in values:
            raise StageError(f"no value for '{value.name}' {text_of_type(value)}; give it with --constants FILE.npz")
        array = values[value.name].astype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        shape = axes(value)
        if shape is not None and not _fits(array.shape, shape):
            raise StageError(
                f"the value for '{value.name}' has the shape {array.shape}; it takes {text_of_type(value)}"
            )
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), value.name))
    dropped = sum(v.name in unread for v in leaked)
    done = [f"bound {len(leaked) - dropped} as initializers"] if dropped < len(leaked) else []
    done += [f"dropped {dropped} that nothing reads"] if dropped else []
    return f"leaked constants: {', '.join(done)}"


def _fits(shape: tuple[int, ...], declared: tuple[object, ...]) -> bool:
    same = len(shape) == len(declared)
    return same and all(not isinstance(d, int) or d == n for n, d in zip(shape, declared, strict=True))


def _plain(name: str) -> str:
    """Return a tensor's name without TensorFlow's output number."""
    return name.removesuffix(":0")


def _unread(graph: onnx.GraphProto) -> set[str]:
    read = {name for node in nodes(graph) for name in node.input} | {o.name for o in graph.output}
    return {i.name for i in required_inputs(graph)} - read


def _read_as_weights(graph: onnx.GraphProto) -> set[str]:
    return {
        name for node in nodes(graph) for place, name in enumerate(node.input) if place in WEIGHTS.get(node.op_type, ())
    }


def _certain(clues: Clues) -> set[str]:
    given = {_plain(name) for name in clues.constants}
    named = {i.name for i in required_inputs(clues.graph) if _plain(i.name) in given}
    return _unread(clues.graph) | _read_as_weights(clues.graph) | named


def _has_the_looks(value: onnx.ValueInfoProto, inputs: list[onnx.ValueInfoProto]) -> bool:
    shape = axes(value)
    if shape is None or any(not isinstance(axis, int) for axis in shape):
        return False
    others = (axes(other) for other in inputs if other.name != value.name)
    is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    return is_float and any(other and not isinstance(other[0], int) for other in others)


def _looks(clues: Clues) -> bool:
    """Tell whether nothing but their looks speaks against the suspects."""
    sure = _certain(clues)
    return not (clues.signature or clues.data) and not any(v.name in sure for v in suspects(clues))
