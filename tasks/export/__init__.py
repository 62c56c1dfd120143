"""From the source framework to ONNX."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import onnx
from pydantic import Field

from tasks.artifact import Artifact, digest_of
from tasks.data.golden import Golden
from tasks.export.as_is import AsIs
from tasks.export.dynamo import Dynamo
from tasks.export.jax2onnx import Jax2Onnx
from tasks.export.saved_model import SavedModel
from tasks.export.skl2onnx import Skl2Onnx
from tasks.export.tf2onnx import Tf2Onnx
from tasks.export.torchscript import TorchScript
from tasks.export.vote import Both, Vote
from tasks.frozen import Frozen
from tasks.model_file import read_to_change, write_model
from tasks.report import Check, Report
from tasks.runtime.graph import nodes
from tasks.runtime.libraries import operator_libraries
from tasks.runtime.session import supported_ir_version
from tasks.signature import OperatorLibrary, Signature
from tasks.workspace import Workspace

ExportConfig = Annotated[
    TorchScript | Dynamo | Both | Tf2Onnx | SavedModel | Skl2Onnx | Jax2Onnx | AsIs,
    Field(discriminator="kind", description="how the model becomes ONNX"),
]


class ExportFacts(Frozen):
    """What was exported."""

    exporter: str
    opset: int = Field(description="of the default domain")
    ir_version: int
    nodes: int
    size_bytes: int
    frozen: tuple[str, ...] = Field(
        (), description="lines of the network at which a trace froze a value of its one run"
    )
    vote: Vote | None = Field(None, description="what two exporters and the source said, where both were asked")


def files_of(config: ExportConfig) -> tuple[Path, ...]:
    """Return the user's files that an exporter reads."""
    return config.files() if isinstance(config, TorchScript | Dynamo | Both) else ()


def export(
    config: ExportConfig,
    out: Workspace,
    *,
    model: Artifact,
    signature: Signature,
    golden: Artifact,
    files: tuple[Path, ...] = (),
) -> Report[ExportFacts]:
    """Export the trained model, in evaluation mode, with its signature in `metadata_props`.

    Args:
        config: which exporter.
        out: where to write.
        model: the source framework's file.
        signature: the model's contract.
        golden: the source's answers.
        files: the user's files that are read; an argument so that their content is part of the work's identity.

    Returns:
        The artifact `model`.
    """
    path = out.folder / "model.onnx"
    vote, frozen = None, list[str]()
    with _traced(frozen):
        if isinstance(config, Both):
            vote = config.write(out.path(model), signature, path, Golden.load(out.path(golden)))
        else:
            config.write(out.path(model), signature, path)
    proto = read_to_change(path)
    signature.replace(operator_libraries=_libraries(proto)).write(proto)
    proto.producer_name = "onnx-gauntlet"
    proto.ir_version = min(proto.ir_version, supported_ir_version())
    kept = out.keep(path, *write_model(proto, path))
    facts = ExportFacts(
        exporter=config.kind,
        opset=next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0),
        ir_version=proto.ir_version,
        nodes=len(proto.graph.node),
        size_bytes=kept.size_bytes,
        frozen=tuple(frozen),
        vote=vote,
    )
    checks = _frozen(frozen) + ((vote.check(),) if vote else ())
    return Report(stage="export", facts=facts, checks=checks, artifacts={"model": kept})


def _libraries(proto: onnx.ModelProto) -> tuple[OperatorLibrary, ...]:
    """Return the libraries that a model with operators of its own needs."""
    own = {node.domain for node in nodes(proto.graph)} - {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
    libraries = operator_libraries() if own else ()
    return tuple(OperatorLibrary(name=path.name, sha256=digest_of([path])) for path in libraries)


@contextmanager
def _traced(frozen: list[str]) -> Iterator[None]:
    """Collect what PyTorch's tracer says of values that it froze; other warnings pass."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        if warning.category.__name__ != "TracerWarning":
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        told = f"{Path(warning.filename).name}:{warning.lineno}: {str(warning.message).split('. ')[0]}"
        if told not in frozen:
            frozen.append(told)


def _frozen(lines: list[str]) -> tuple[Check, ...]:
    """Return a warning where a trace froze values: it is harmless unless they change from call to call."""
    if not lines:
        return ()
    check = Check(
        name="export.frozen_values",
        value=len(lines),
        op="==",
        limit=0,
        severity="warning",
        detail="; ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else ""),
        remedy="harmless where the value never changes; else write it with tensors, or use export.kind dynamo",
    )
    return (check,)
