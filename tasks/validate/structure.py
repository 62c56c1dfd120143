"""Gate on the file itself: what can be known about a model without running it on data."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Check, Report
from tasks.runtime.session import open_session, supported_ir_version, supported_opset
from tasks.signature import Signature
from tasks.workspace import Workspace

RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


class StructureConfig(Frozen):
    """What a model's structure may be."""

    max_opset: int | None = Field(
        None, ge=1, description="newest operator set that the oldest runtime in use takes; by default, this machine's"
    )
    max_ir_version: int | None = Field(None, ge=1, description="newest IR version that it takes; by default likewise")


class StructureFacts(Frozen):
    """What the file holds."""

    opsets: dict[str, int]
    ir_version: int
    nodes: int
    operators: dict[str, int] = Field(description="count by operator type")
    inputs: dict[str, str] = Field(description="type and shape by name")
    outputs: dict[str, str]


def check_structure(config: StructureConfig, out: Workspace, *, model: Artifact) -> Report[StructureFacts]:
    """Check the model against the standard, against its own signature, and against the runtime."""
    path = out.path(model)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise StageError(f"{model.name}: not an ONNX model ({error})") from error
    graph = proto.graph
    initializers = {t.name for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in initializers]
    try:
        signature = Signature.read(proto)
        declared_inputs, declared_outputs = ({t.name for t in ts} for ts in (signature.inputs, signature.outputs))
    except StageError:  # a missing signature is a finding, told by the check below
        signature, declared_inputs, declared_outputs = None, set(), set()
    checker = _complaint(lambda: onnx.checker.check_model(str(path), full_check=True))
    refusal = _complaint(lambda: open_session(path))
    opsets = {o.domain or "ai.onnx": o.version for o in proto.opset_import}
    frozen = [t.name for t in (*inputs, *graph.output) if _first_axis_is_fixed(t)]
    own = {(f.domain, f.name) for f in proto.functions}
    unregistered = sorted(
        f"{domain or 'ai.onnx'}::{kind}"
        for domain, kind in {(n.domain, n.op_type) for n in nodes(graph)} - own
        if not _is_known(domain, kind, opsets)
    )
    off = _false_constants(graph)
    checks = (
        _none("signature", [] if signature else ["metadata_props has none"], "export the model with this pipeline"),
        _none("checker_errors", checker, "the file is not valid ONNX: export it again"),
        _none("runtime_errors", refusal, "the installed ONNX Runtime cannot load it: see the message"),
        _none(
            "undeclared_inputs",
            [i.name for i in inputs if i.name not in declared_inputs] if signature else [],
            "a constant leaked out as an input: bind it as an initializer, or declare the input",
        ),
        _none("missing_inputs", sorted(declared_inputs - {i.name for i in inputs}), "the graph lost a declared input"),
        _none("missing_outputs", sorted(declared_outputs - {o.name for o in graph.output}), "the graph lost an output"),
        _none(
            "frozen_batch",
            frozen,
            "export with a dynamic batch: name its axis",
        ),
        Check(
            name="structure.max_opset",
            value=opsets.get("ai.onnx"),
            op="<=",
            limit=config.max_opset or supported_opset(),
            remedy="lower export.opset, or update ONNX Runtime",
        ),
        Check(
            name="structure.max_ir_version",
            value=proto.ir_version,
            op="<=",
            limit=config.max_ir_version or supported_ir_version(),
            remedy="save the model with a lower ir_version, or update ONNX Runtime",
        ),
        _none("training_nodes", [_label(n) for n in nodes(graph) if _trains(n, off)], "export in evaluation mode"),
        _none("unregistered_operators", unregistered, "register the library that implements it"),
        _none("external_data_outside", _strays(graph, path.parent), "external data must lie beside the model"),
    )
    facts = StructureFacts(
        opsets=opsets,
        ir_version=proto.ir_version,
        nodes=len(graph.node),
        operators=_counts(proto),
        inputs={i.name: _shape(i) for i in inputs},
        outputs={o.name: _shape(o) for o in graph.output},
    )
    return Report(stage="structure", facts=facts, checks=checks)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, those of If, Loop and Scan bodies included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from nodes(body)


def _none(name: str, found: list[str], remedy: str) -> Check:
    """Return the check that a list of faults is empty."""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return Check(
        name=f"structure.{name}",
        value=len(found),
        op="==",
        limit=0,
        detail=", ".join(found[:3]) + more,
        remedy=remedy if found else "",
    )


def _complaint(attempt: Callable[[], object]) -> list[str]:
    try:
        attempt()
    except Exception as error:  # checker and runtime raise many types; each is a finding here
        return [" ".join(str(error).split())[:400]]
    return []


def _first_axis_is_fixed(value: onnx.ValueInfoProto) -> bool:
    axes = value.type.tensor_type.shape.dim
    return len(axes) > 0 and axes[0].HasField("dim_value")


def _is_known(domain: str, kind: str, opsets: dict[str, int]) -> bool:
    domain = "" if domain == "ai.onnx" else domain
    if domain in RUNTIME_DOMAINS:
        return True
    try:
        onnx.defs.get_schema(kind, opsets.get(domain or "ai.onnx", 1), domain)
    except onnx.defs.SchemaError:
        return False
    return True


def _false_constants(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the constant tensors that hold nothing but False."""
    constants = [(t.name, t) for t in graph.initializer]
    for node in nodes(graph):
        if node.op_type == "Constant":
            constants += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    return {name for name, tensor in constants if _is_false(tensor)}


def _is_false(tensor: onnx.TensorProto) -> bool:
    here = tensor.data_location != onnx.TensorProto.EXTERNAL
    return here and tensor.data_type == onnx.TensorProto.BOOL and not onnx.numpy_helper.to_array(tensor).any()


def _trains(node: onnx.NodeProto, off: set[str]) -> bool:
    """Tell whether a node behaves as in training; a switch that is computed might be on."""
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2]) and node.input[2] not in off
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every stored tensor: initializers and constants, those of inner graphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for body in (attribute.g, *attribute.graphs):
                yield from _tensors(body)


def _strays(graph: onnx.GraphProto, folder: Path) -> list[str]:
    """Return the external data files that are not inside the model's folder, or not there."""
    locations = {e.value for t in _tensors(graph) for e in t.external_data if e.key == "location"}
    return sorted(
        place
        for place in locations
        if PurePosixPath(place).is_absolute()
        or PureWindowsPath(place).is_absolute()
        or not (folder / place).resolve().is_relative_to(folder.resolve())
        or not (folder / place).is_file()
    )


def _counts(proto: onnx.ModelProto) -> dict[str, int]:
    types = [node.op_type for node in nodes(proto.graph)]
    return {name: types.count(name) for name in sorted(set(types))}


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name}'"


def _shape(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    axes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return f"{onnx.TensorProto.DataType.Name(kind.elem_type).lower()}[{', '.join(axes)}]"
