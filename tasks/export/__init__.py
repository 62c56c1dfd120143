"""Export a framework model to ONNX."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import onnx
from pydantic import Field

from gauntlet.core.artifact import Artifact, sha256_of
from gauntlet.core.errors import listed
from gauntlet.core.facts import Facts
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import OperatorLibrary, Signature
from gauntlet.core.stage import stage
from gauntlet.core.unions import OneOf
from gauntlet.core.workspace import Workspace
from gauntlet.onnx_model.graph import all_nodes, opset_versions
from gauntlet.onnx_model.model_file import read_for_editing, write_model
from gauntlet.runtime.operator_libraries import operator_libraries
from gauntlet.runtime.session import supported_ir_version
from tasks.export.base import AsIs, CrossCheck, Exporter

ExportConfig = Annotated[Exporter, OneOf("export", (AsIs,)), Field(description="the exporter")]


class ExportFacts(Facts):
    """The exported model and how it was made."""

    of_reference = True

    exporter: str
    opset: int = Field(description="operator set of the default domain")
    ir_version: int
    nodes: int
    size_bytes: int
    traced_constants: tuple[str, ...] = Field((), description="source lines where tracing froze a value as a constant")
    cross_check: CrossCheck | None = Field(None, description="comparison of two exporters, for kind both")


@stage(process_wide=True)
def export(
    config: ExportConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    signature: Signature,
    golden: Artifact,
    files: tuple[object, ...] = (),
) -> Report[ExportFacts]:
    """Export the trained model, in evaluation mode, with its signature in `metadata_props`; the artifact is `model`.

    `golden` holds the framework model's outputs. `files` are the user's files that are read; an argument so that their
    content is part of the cache key.
    """
    path = workspace.folder / "model.onnx"
    constants: list[str] = []
    with _collect_traced_constants(constants):
        cross_check = config.write_checked(workspace.path(model), signature, path, workspace.path(golden))
    proto = _completed(read_for_editing(path), signature)
    exported = workspace.store_file(path, *write_model(proto, path))
    facts = ExportFacts(
        exporter=config.kind,
        opset=opset_versions(proto).get("ai.onnx", 0),
        ir_version=proto.ir_version,
        nodes=len(proto.graph.node),
        size_bytes=exported.size_bytes,
        traced_constants=tuple(constants),
        cross_check=cross_check,
    )
    checks = _traced_constants_check(constants) + ((cross_check.check(),) if cross_check else ())
    return Report(facts=facts, checks=checks, artifacts={"model": exported})


def _completed(proto: onnx.ModelProto, signature: Signature) -> onnx.ModelProto:
    """Write the signature, the producer and a supported IR version into the model; return it."""
    own = {node.domain for node in all_nodes(proto.graph)} - {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
    files = operator_libraries() if own else ()
    libraries = tuple(OperatorLibrary(name=path.name, sha256=sha256_of([path])) for path in files)
    signature.replace(operator_libraries=libraries).write(proto)
    proto.producer_name, proto.producer_version = "onnx-gauntlet", version("onnx-gauntlet")
    proto.ir_version = min(proto.ir_version, supported_ir_version())
    return proto


@contextmanager
def _collect_traced_constants(lines: list[str]) -> Iterator[None]:
    """Append the warnings of PyTorch's tracer about constants to `lines`; emit other warnings again."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        if warning.category.__name__ != "TracerWarning":
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        line = f"{Path(warning.filename).name}:{warning.lineno}: {str(warning.message).split('. ')[0]}"
        if line not in lines:
            lines.append(line)


def _traced_constants_check(lines: list[str]) -> tuple[Check, ...]:
    """Return a warning when tracing froze values: harmless unless they change from call to call."""
    if not lines:
        return ()
    fix = "harmless if the value never changes; else compute it with tensors, or use export.kind: dynamo"
    return (Check.of("export.traced_constants", len(lines), "==", 0, listed(lines, 3, "; "), fix, severity="warning"),)
