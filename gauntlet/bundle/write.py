"""Write what `gauntlet.bundle.bundle` reads: the files of a run's winner, in a folder to be sealed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from pydantic import Field

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, REPORT
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.bundle.loading import differences
from gauntlet.bundle.provenance import statements, temperature, winner_of
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, first_samples
from gauntlet.onnx_model.model_file import model_files, read_graph, stored_tensors
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import Engine
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from gauntlet.targets.base import BaseTarget

FLOAT_TOLERANCE, HALF_TOLERANCE, INTEGER_TOLERANCE = 1e-3, 1e-2, 2e-2
"""Of golden outputs on another processor: kernels there may sum in another order, and round one integer otherwise."""


class CardConfig(Frozen):
    """What only its authors know of a model; Markdown."""

    description: str = Field("", description="what the model does, in a sentence or two")
    developed_by: str = Field("", description="person or organization, and where questions about the model go")
    license: str = Field("", description="of the model: an SPDX identifier such as apache-2.0")
    intended_use: str = Field("", description="what the model is for, for whom, and what it must not be used for")
    limitations: str = Field("", description="known limits and risks that no test measures")


def contract_of(
    report: RunReport,
    model: Path,
    *,
    candidate: str,
    target: BaseTarget,
    threads: int,
    session: dict[str, str | int | bool] | None,
) -> Contract:
    """Return the contract of a run's winner: its file, and its session's options or else its target's and `threads`."""
    processor, graph = Processor.current(), read_graph(model)
    rows = [row for row in winner_of(report).benchmark if row.target == target.name]
    options = target.model_dump(mode="json", exclude_defaults=True) | {"kind": target.kind}
    return Contract(
        name=report.name,
        run_id=report.run_id,
        candidate=candidate,
        signature=Signature.read(graph),
        target=target.name,
        session=session,
        options=options if session is None else {},
        threads=threads if session is None else None,
        latencies=tuple(BatchLatency(batch=row.batch, median_ms=row.median_ms) for row in rows),
        temperature=temperature(report),
        golden_tolerance=_tolerance(graph),
        runtime=f"onnxruntime {onnxruntime.__version__}",
        processor=processor.name,
        instructions=tuple(processor.instructions),
    )


def _tolerance(model: onnx.ModelProto) -> float:
    """Return how far another processor's outputs may be, by how the model computes."""
    operators = {node.op_type for node in model.graph.node}
    if any("Integer" in op or "Quantize" in op or op.startswith("QLinear") for op in operators):
        return INTEGER_TOLERANCE
    kinds = {tensor.data_type for tensor in stored_tensors(model.graph)}
    return HALF_TOLERANCE if kinds & {TensorProto.FLOAT16, TensorProto.BFLOAT16} else FLOAT_TOLERANCE


def link_model(model: Path, folder: Path, reserved: Sequence[str] = ()) -> None:
    """Link the model and its external data into the folder; they are read once, when it is archived.

    Raises:
        StageError: when its external data has the name of another file of a bundle.
    """
    (folder / MODEL).symlink_to(model)
    for weights in model_files(model)[1:]:
        link = folder / weights.relative_to(model.parent)
        if link.exists() or weights.name in (CONTRACT, GOLDEN, REPORT, *reserved):
            raise StageError(f"{model}: its external data {weights.name!r} has the name of another file of the bundle")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(weights)


def save_golden(
    contract: Contract, session: Any, model: Path, golden: Golden, folder: Path, *, max_samples: int, max_kb: float
) -> Contract:
    """Save the first real samples with the outputs of the winner's file and of the source; one sample always stays.

    Returns the contract with the session's runtime. Where that is not ONNX Runtime, whose outputs for these samples
    differ, those of another machine may differ twice as much.
    """
    real = golden.real
    sample_bytes = sum(a[:1].nbytes for a in (*real.inputs.values(), *real.outputs.values(), *real.outputs.values()))
    count = max(1, min(max_samples, int(1000 * max_kb / sample_bytes)))
    inputs, source = first_samples(real.inputs, count), first_samples(real.outputs, count)
    outputs = batched_inference(session, inputs).run(contract.best_batch)
    groups = {"inputs": inputs, "outputs": outputs, "source": source}
    arrays = {f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()}
    np.savez(folder / GOLDEN, allow_pickle=False, **arrays)
    if not isinstance(session, Engine):
        return contract
    plain = batched_inference(open_session(model), inputs).run(contract.best_batch)
    apart = max(output.max_rel_error for output in differences(plain, outputs))
    return contract.replace(runtime=session.runtime, golden_tolerance=max(contract.golden_tolerance, 2 * apart))


def write_documents(contract: Contract, report: RunReport, card: CardConfig, folder: Path) -> None:
    """Write everything but the model and arrays: contract, report, provenance, and what packages bring."""
    weights = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and path.name != MODEL]
    files = {p.relative_to(folder).as_posix(): sha256_of([p]) for p in (folder / MODEL, *weights)}
    (folder / CONTRACT).write_text(contract.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / REPORT).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    proof = {p.name: sha256_of([p]) for p in sorted(folder.iterdir()) if p.is_file() and not p.is_symlink()}
    (folder / "provenance").mkdir()
    for name, statement in statements(report, files, proof).items():
        (folder / "provenance" / name).write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")
    size_bytes = sum((folder / name).stat().st_size for name in files)
    for documents in kinds("document").values():
        for name, text in documents(contract, report, card, files, size_bytes).items():
            (folder / name).write_text(text, encoding="utf-8")
