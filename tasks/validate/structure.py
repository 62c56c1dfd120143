"""Gate on the file itself: what can be known about a model without running it on data."""

from collections.abc import Callable

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import stray_locations
from tasks.report import Check, Report
from tasks.runtime.graph import label, nodes, one_line, opsets, text_of_type
from tasks.runtime.libraries import operator_libraries
from tasks.runtime.operators import training_nodes, unknown_nodes
from tasks.runtime.session import open_session, supported_ir_version, supported_opset
from tasks.signature import Signature, TensorSpec
from tasks.workspace import Workspace


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
    versions = opsets(proto)
    # A signature that fixes an axis itself has said so to its callers; only what it calls dynamic must be so.
    dynamic = {t.name for t in (*signature.inputs, *signature.outputs) if _batch_is_named(t)} if signature else set()
    frozen = [
        t.name for t in (*inputs, *graph.output) if _first_axis_is_fixed(t) and (not signature or t.name in dynamic)
    ]
    # What is in a library only the runtime knows: it names the operator that it lacks.
    lacking = [n for n in nodes(graph) if any(f"{n.domain}:{n.op_type}(" in complaint for complaint in refusal)]
    lacking += [] if operator_libraries() else unknown_nodes(proto)
    unregistered = sorted({f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in lacking})
    checks = (
        _none("signature", [] if signature else ["metadata_props has none"], "export the model with this pipeline"),
        _none("checker_errors", checker, "the file is not valid ONNX: export it again"),
        _none("runtime_errors", refusal, "the installed ONNX Runtime cannot load it: see the message"),
        _none(
            "undeclared_inputs",
            [i.name for i in inputs if i.name not in declared_inputs] if signature else [],
            "a constant leaked out as an input: bind it (gauntlet diagnose --fix), or declare the input",
        ),
        _none("missing_inputs", sorted(declared_inputs - {i.name for i in inputs}), "the graph lost a declared input"),
        _none("missing_outputs", sorted(declared_outputs - {o.name for o in graph.output}), "the graph lost an output"),
        _none("frozen_batch", frozen, "export with a dynamic batch: name its axis; gauntlet diagnose --fix can do it"),
        Check(
            name="structure.max_opset",
            value=versions.get("ai.onnx"),
            op="<=",
            limit=config.max_opset or supported_opset(),
            remedy="lower export.opset, convert it (gauntlet diagnose --fix), or update ONNX Runtime",
        ),
        Check(
            name="structure.max_ir_version",
            value=proto.ir_version,
            op="<=",
            limit=config.max_ir_version or supported_ir_version(),
            remedy="lower it (gauntlet diagnose --fix), or update ONNX Runtime",
        ),
        _none(
            "training_nodes",
            [label(n) for n in training_nodes(proto)],
            "export in evaluation mode; gauntlet diagnose --fix can change it",
        ),
        _none("unregistered_operators", unregistered, "name the library that implements it under operator_libraries"),
        _none("external_data_outside", stray_locations(proto, path.parent), "external data must lie beside the model"),
    )
    facts = StructureFacts(
        opsets=versions,
        ir_version=proto.ir_version,
        nodes=len(graph.node),
        operators=_counts(proto),
        inputs={i.name: text_of_type(i) for i in inputs},
        outputs={o.name: text_of_type(o) for o in graph.output},
    )
    return Report(stage="structure", facts=facts, checks=checks)


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
        return [one_line(error)]
    return []


def _first_axis_is_fixed(value: onnx.ValueInfoProto) -> bool:
    axes = value.type.tensor_type.shape.dim
    return len(axes) > 0 and axes[0].HasField("dim_value")


def _batch_is_named(spec: TensorSpec) -> bool:
    return bool(spec.shape) and isinstance(spec.shape[0], str)


def _counts(proto: onnx.ModelProto) -> dict[str, int]:
    types = [node.op_type for node in nodes(proto.graph)]
    return {name: types.count(name) for name in sorted(set(types))}
