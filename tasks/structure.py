"""Gate on the model file: what can be checked without running it on data."""

from collections.abc import Callable
from pathlib import Path

import onnx
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.onnx_model.graph import all_nodes, format_type, node_label, one_line, opset_versions
from gauntlet.onnx_model.model_file import invalid_external_locations
from gauntlet.runtime.operator_libraries import operator_libraries
from gauntlet.runtime.operator_support import training_mode_nodes, unsupported_nodes
from gauntlet.runtime.session import open_session, supported_ir_version, supported_opset


class StructureConfig(Frozen):
    """Limits on a model's structure."""

    max_opset: int | None = Field(
        None, ge=1, description="newest operator set that the oldest runtime in use supports; by default this machine's"
    )
    max_ir_version: int | None = Field(
        None, ge=1, description="newest IR version that the oldest runtime in use supports; by default this machine's"
    )


class StructureFacts(Frozen):
    """What the file contains."""

    opsets: dict[str, int]
    ir_version: int
    nodes: int
    operators: dict[str, int] = Field(description="count by operator type")
    inputs: dict[str, str] = Field(description="type and shape by name")
    outputs: dict[str, str]


def structure(config: StructureConfig, workspace: Workspace, *, model: Artifact) -> Report[StructureFacts]:
    """Check the model against the ONNX standard, its own signature, and the installed ONNX Runtime."""
    path = workspace.path(model)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise StageError(f"{model.name}: not an ONNX model ({error})") from error
    signature = _signature(proto)
    versions = opset_versions(proto)
    load_errors = _error_of(lambda: open_session(path))
    facts = StructureFacts(
        opsets=versions,
        ir_version=proto.ir_version,
        nodes=len(proto.graph.node),
        operators=_counts(proto),
        inputs={i.name: format_type(i) for i in _inputs(proto.graph)},
        outputs={o.name: format_type(o) for o in proto.graph.output},
    )
    checks = (
        *_load_checks(path, signature, load_errors),
        *_interface_checks(proto.graph, signature),
        *_version_checks(config, versions.get("ai.onnx"), proto.ir_version),
        *_content_checks(proto, path, load_errors),
    )
    return Report(stage="structure", facts=facts, checks=checks)


def _signature(proto: onnx.ModelProto) -> Signature | None:
    """Return the model's signature, or None: the check `structure.signature` reports a missing one."""
    try:
        return Signature.read(proto)
    except StageError:
        return None


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must pass: all without a default value."""
    initializers = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in initializers]


def _load_checks(path: Path, signature: Signature | None, load_errors: list[str]) -> tuple[Check, ...]:
    """Check that the file has a signature, is valid ONNX, and loads in ONNX Runtime."""
    return (
        _none("signature", [] if signature else ["metadata_props has none"], "export the model with this pipeline"),
        _none(
            "checker_errors",
            _error_of(lambda: onnx.checker.check_model(str(path), full_check=True)),
            "the file is not valid ONNX: export it again",
        ),
        _none("runtime_errors", load_errors, "the installed ONNX Runtime cannot load the model: see the message"),
    )


def _content_checks(proto: onnx.ModelProto, path: Path, load_errors: list[str]) -> tuple[Check, ...]:
    """Check the nodes and the locations of external data."""
    return (
        _none(
            "training_nodes",
            [node_label(n) for n in training_mode_nodes(proto)],
            "export in evaluation mode; gauntlet diagnose --fix can change it",
        ),
        _none(
            "unregistered_operators",
            _unregistered(proto, load_errors),
            "name the library that implements it under operator_libraries",
        ),
        _none(
            "external_data_outside",
            invalid_external_locations(proto, path.parent),
            "put external data into the model's folder",
        ),
    )


def _interface_checks(graph: onnx.GraphProto, signature: Signature | None) -> tuple[Check, ...]:
    """Compare the inputs and outputs of the graph with those that the signature declares."""
    inputs = _inputs(graph)
    declared_inputs = {t.name for t in signature.inputs} if signature else set()
    declared_outputs = {t.name for t in signature.outputs} if signature else set()
    # An axis that the signature itself fixes may be fixed; one that it names must be dynamic.
    dynamic = {t.name for t in (*signature.inputs, *signature.outputs) if _batch_is_named(t)} if signature else set()
    frozen = [
        t.name for t in (*inputs, *graph.output) if _first_axis_is_fixed(t) and (not signature or t.name in dynamic)
    ]
    return (
        _none(
            "undeclared_inputs",
            [i.name for i in inputs if i.name not in declared_inputs] if signature else [],
            "a constant became an input: bind it (gauntlet diagnose --fix), or declare the input",
        ),
        _none("missing_inputs", sorted(declared_inputs - {i.name for i in inputs}), "the graph lacks a declared input"),
        _none(
            "missing_outputs",
            sorted(declared_outputs - {o.name for o in graph.output}),
            "the graph lacks a declared output",
        ),
        _none("frozen_batch", frozen, "export with a named (dynamic) batch axis; gauntlet diagnose --fix can name it"),
    )


def _version_checks(config: StructureConfig, opset: int | None, ir_version: int) -> tuple[Check, ...]:
    return (
        Check(
            name="structure.max_opset",
            value=opset,
            op="<=",
            limit=config.max_opset or supported_opset(),
            remedy="lower export.opset, convert it (gauntlet diagnose --fix), or update ONNX Runtime",
        ),
        Check(
            name="structure.max_ir_version",
            value=ir_version,
            op="<=",
            limit=config.max_ir_version or supported_ir_version(),
            remedy="lower it (gauntlet diagnose --fix), or update ONNX Runtime",
        ),
    )


def _unregistered(proto: onnx.ModelProto, load_errors: list[str]) -> list[str]:
    """Return the operators without an implementation.

    With operator libraries, only the runtime's own errors tell which are missing.
    """
    missing = [n for n in all_nodes(proto.graph) if any(f"{n.domain}:{n.op_type}(" in text for text in load_errors)]
    missing += [] if operator_libraries() else unsupported_nodes(proto)
    return sorted({f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in missing})


def _none(name: str, faults: list[str], remedy: str) -> Check:
    """Return the check that a list of faults is empty."""
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    return Check(
        name=f"structure.{name}",
        value=len(faults),
        op="==",
        limit=0,
        detail=", ".join(faults[:3]) + more,
        remedy=remedy if faults else "",
    )


def _error_of(call: Callable[[], object]) -> list[str]:
    """Return the message of the error that a call raises, or an empty list."""
    try:
        call()
    except Exception as error:  # the checker and the runtime raise many types
        return [one_line(error)]
    return []


def _first_axis_is_fixed(value: onnx.ValueInfoProto) -> bool:
    axes = value.type.tensor_type.shape.dim
    return len(axes) > 0 and axes[0].HasField("dim_value")


def _batch_is_named(spec: TensorSpec) -> bool:
    return bool(spec.shape) and isinstance(spec.shape[0], str)


def _counts(proto: onnx.ModelProto) -> dict[str, int]:
    types = [node.op_type for node in all_nodes(proto.graph)]
    return {name: types.count(name) for name in sorted(set(types))}
