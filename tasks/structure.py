"""Gate on the model file: what can be checked without running it on data."""

from collections import Counter

import onnx
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError, listed, one_line
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.onnx_model.graph import all_nodes, first_axis, format_type, node_label, opset_versions, required_inputs
from gauntlet.onnx_model.model_file import checker_error, invalid_external_locations, read_graph
from gauntlet.runtime.operator_libraries import operator_libraries
from gauntlet.runtime.operator_support import training_mode_nodes, unsupported_nodes
from gauntlet.runtime.session import open_session, supported_ir_version, supported_opset

REMEDIES = {
    "signature": "export the model with this pipeline",
    "checker_errors": "the file is not valid ONNX: export it again",
    "runtime_errors": "the installed ONNX Runtime cannot load the model: see the message",
    "undeclared_inputs": "a constant became an input: bind it (gauntlet diagnose --fix), or declare the input",
    "missing_inputs": "declare the inputs that the graph has (gauntlet inspect lists them), or export it with these",
    "missing_outputs": "declare the outputs that the graph has (gauntlet inspect lists them), or export it with these",
    "repeated_outputs": "export again with a name of its own for each output",
    "undeclared_outputs": "export again with a name for each output, or leave these out of what the model returns",
    "frozen_batch": "export with a named (dynamic) batch axis; gauntlet diagnose --fix can name it",
    "max_opset": "lower export.opset, convert it (gauntlet diagnose --fix), or update ONNX Runtime",
    "max_ir_version": "lower it (gauntlet diagnose --fix), or update ONNX Runtime",
    "training_nodes": "export in evaluation mode; gauntlet diagnose --fix can change it",
    "unregistered_operators": "name the library that implements it under operator_libraries",
    "external_data_outside": "put external data into the model's folder",
}

NEED_SIGNATURE = ("undeclared_inputs", "missing_inputs", "missing_outputs", "undeclared_outputs")


class StructureConfig(Frozen):
    """Limits on a model's structure."""

    max_opset: int | None = Field(
        None, ge=1, description="newest operator set of the oldest runtime in use; by default this machine's"
    )
    max_ir_version: int | None = Field(
        None, ge=1, description="newest IR version of the oldest runtime in use; by default this machine's"
    )


class StructureFacts(Facts):
    """What the file contains."""

    of_reference = True

    opsets: dict[str, int]
    ir_version: int
    nodes: int
    operators: dict[str, int] = Field(description="count by operator type")
    inputs: dict[str, str] = Field(description="type and shape by name")
    outputs: dict[str, str]


def structure(config: StructureConfig, workspace: Workspace, *, model: Artifact) -> Report[StructureFacts]:
    """Check the model against the ONNX standard, its own signature, and the installed ONNX Runtime."""
    path = workspace.path(model)
    proto = read_graph(path)
    signature, versions = Signature.find(proto), opset_versions(proto)
    standard = any(node.domain in ("", "ai.onnx") for node in all_nodes(proto.graph))  # CatBoost's files have none
    checker_errors, load_errors = [*filter(None, [checker_error(path)])], list[str]()
    try:
        open_session(path)
    except StageError as error:
        load_errors.append(one_line(error))
    facts = StructureFacts(
        opsets=versions,
        ir_version=proto.ir_version,
        nodes=len(proto.graph.node),
        operators=dict(sorted(Counter(node.op_type for node in all_nodes(proto.graph)).items())),
        inputs={i.name: format_type(i) for i in required_inputs(proto.graph)},
        outputs={o.name: format_type(o) for o in proto.graph.output},
    )
    checks = (
        _no_faults("signature", [] if signature else ["metadata_props has none"]),
        _no_faults("checker_errors", checker_errors),
        _no_faults("runtime_errors", load_errors),
        *(_no_faults(name, faults) for name, faults in _interface_faults(proto.graph, signature).items()),
        _at_most("max_opset", versions.get("ai.onnx", None if standard else 0), config.max_opset or supported_opset()),
        _at_most("max_ir_version", proto.ir_version, config.max_ir_version or supported_ir_version()),
        _no_faults("training_nodes", [node_label(n) for n in training_mode_nodes(proto)]),
        _no_faults("unregistered_operators", _unregistered(proto, load_errors)),
        _no_faults("external_data_outside", invalid_external_locations(proto, path.parent)),
    )
    return Report(facts=facts, checks=checks)


def _interface_faults(graph: onnx.GraphProto, signature: Signature | None) -> dict[str, list[str]]:
    """Compare the inputs and outputs of the graph with those that the signature declares, if any."""
    values = (*required_inputs(graph), *graph.output)
    inputs, outputs = [i.name for i in required_inputs(graph)], Counter(o.name for o in graph.output)
    tensors = [value.name for value in graph.output if value.type.HasField("tensor_type")]
    repeated = [name for name, count in outputs.items() if count > 1]
    fixed = [value.name for value in values if isinstance(first_axis(value), int)]
    if signature is None:
        undeclared: dict[str, list[str]] = {name: [] for name in NEED_SIGNATURE}
        return undeclared | {"repeated_outputs": repeated, "frozen_batch": fixed}
    declared_inputs, declared_outputs = ({t.name for t in specs} for specs in (signature.inputs, signature.outputs))
    # An axis that the signature itself fixes may be fixed; one that it names must be dynamic.
    specs = (*signature.inputs, *signature.outputs)
    dynamic = {spec.name for spec in specs if spec.shape and isinstance(spec.shape[0], str)}
    return {
        "undeclared_inputs": [name for name in inputs if name not in declared_inputs],
        "missing_inputs": sorted(declared_inputs.difference(inputs)),
        "missing_outputs": sorted(declared_outputs.difference(outputs)),
        "repeated_outputs": repeated,
        "undeclared_outputs": [name for name in tensors if name not in declared_outputs],  # lists and maps are left out
        "frozen_batch": [name for name in fixed if name in dynamic],
    }


def _unregistered(proto: onnx.ModelProto, load_errors: list[str]) -> list[str]:
    """Return the operators without an implementation; with operator libraries, only the runtime's errors tell."""
    missing = [n for n in all_nodes(proto.graph) if any(f"{n.domain}:{n.op_type}(" in text for text in load_errors)]
    missing += [] if operator_libraries() else unsupported_nodes(proto)
    return sorted({f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in missing})


def _no_faults(name: str, faults: list[str]) -> Check:
    return Check.of(f"structure.{name}", len(faults), "==", 0, listed(faults, 3), REMEDIES[name])


def _at_most(name: str, version: int | None, limit: int) -> Check:
    return Check(name=f"structure.{name}", value=version, op="<=", limit=limit, remedy=REMEDIES[name])
