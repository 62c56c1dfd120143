"""Package the confirmed winner as one bundle: model, contract, golden data, evidence and digests in one `.zip`.

The same inputs give the same bytes. Where the winner is deployed on another target, the contract names it; golden
outputs are those of ONNX Runtime on the processor all the same, because every machine that opens a bundle has it.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from pydantic import Field

from gauntlet.bundle.bill_of_materials import bill_of_materials
from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, REPORT, Bundle, archive, seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.bundle.evidence import evidence, temperature, winner_of
from gauntlet.bundle.golden_check import GoldenDifference, golden_differences
from gauntlet.bundle.mlflow_flavor import MLMODEL, mlmodel_text
from gauntlet.bundle.model_card import CardConfig, model_card
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.provenance import statements
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact, sha256_of
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, first_samples
from gauntlet.datasets.splits import Split
from gauntlet.monitoring.reference import REFERENCE, MonitoringReference
from gauntlet.onnx_model.embedding_output import EmbeddingOutput, NoEmbedding, find_embedding
from gauntlet.onnx_model.model_file import model_files, read_graph, stored_tensors
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.embedding_session import open_embedding_session
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from tasks.confirm import ConfirmFacts

FLOAT_TOLERANCE, HALF_TOLERANCE, INTEGER_TOLERANCE = 1e-3, 1e-2, 2e-2
"""Of golden outputs on another processor: kernels there may sum in another order, and round one integer otherwise."""


REFERENCE_CHUNK = 256
"""Samples that are in memory at once."""


class PackageConfig(Frozen):
    """What goes into the bundle of the winner."""

    golden_samples: int = Field(16, ge=1, le=64, description="most real samples in the bundle")
    max_golden_kb: float = Field(
        400, gt=0, description="most kilobytes of samples and outputs; one sample always stays"
    )
    max_golden_error: float = Field(
        1e-5, ge=0, description="largest difference between the packaged model's outputs and the winner's, relative"
    )
    max_size_mb: float | None = Field(None, gt=0, description="largest bundle; by default of any size")
    card: CardConfig = Field(default_factory=CardConfig, description="for the model card, the bundle's `README.md`")
    reference_samples: int = Field(
        2000, ge=0, description="most test samples that `gauntlet monitor` compares requests with; 0 for no reference"
    )


class PackageFacts(Frozen):
    """The bundle that was made."""

    digest: str = Field(description="SHA-256 of its manifest, and so of every file in it")
    files: int
    size_bytes: int
    samples: int = Field(description="golden samples")
    embedding: str = Field("", description="the layer whose inputs `gauntlet monitor` can watch, or why there is none")
    golden: tuple[GoldenDifference, ...] = Field(description="the packaged model against the winner's file")
    damage: tuple[str, ...] = Field((), description="files that do not match their digest")
    contract: Contract


def package(
    config: PackageConfig,
    workspace: Workspace,
    *,
    report: RunReport,
    final: ConfirmFacts,
    model: Artifact,
    golden: Artifact,
    test: Artifact | None = None,
) -> Report[PackageFacts]:
    """Make the bundle, and open it again: it must be whole, and its model give the outputs of the winner's file.

    `report` is the run's record so far, `final` its decision, `model` the winner's file, `golden` the source's outputs.
    Without `test`, the samples of the evaluation, the bundle has nothing that requests can be compared with.
    """
    folder = workspace.folder / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    kept = evidence(report)
    contract = _contract(kept, final, workspace.path(model))
    _link_model(workspace.path(model), folder)
    _save_golden(config, contract, workspace.path(model), Golden.load(workspace.path(golden)), folder / GOLDEN)
    if test is not None and config.reference_samples:
        _save_reference(config, contract, workspace.path(model), read_split(workspace.path(test)), folder / REFERENCE)
    _write_documents(contract, kept, config.card, folder)
    seal(folder)
    target = workspace.folder / "bundle.zip"
    archive(folder, target)
    facts, checks = examine(config, target)
    return Report(stage="package", facts=facts, checks=checks, artifacts={"bundle": workspace.store_file(target)})


def examine(config: PackageConfig, path: Path) -> tuple[PackageFacts, tuple[Check, ...]]:
    """Open a bundle as its users do, and return what it holds and the gate's checks."""
    bundle = Bundle.open(path)
    damage = tuple(bundle.damage())
    golden = golden_differences(Predictor(bundle))
    worst = max(golden, key=lambda one: np.nan_to_num(one.max_rel_error, nan=np.inf))
    facts = PackageFacts(
        digest=bundle.digest,
        files=len(bundle.manifest.files),
        size_bytes=path.stat().st_size,
        samples=len(next(iter(bundle.golden().inputs.values()))),
        embedding=_embedded(bundle),
        golden=golden,
        damage=damage,
        contract=bundle.contract,
    )
    checks = [
        Check.of("package.damaged_files", len(damage), "==", 0, "; ".join(damage), "run again; the disk may be faulty"),
        Check.of(
            "package.max_golden_error",
            worst.max_rel_error,
            "<=",
            config.max_golden_error,
            f"output {worst.output!r}, against the winner's file in the session {bundle.contract.session}",
            "run again; if it fails again, the model is not deterministic: raise package.max_golden_error",
        ),
    ]
    if config.max_size_mb is not None:
        fix = "raise package.max_size_mb, or choose smaller candidates"
        checks.append(Check.of("package.max_size_mb", facts.size_bytes / 1e6, "<=", config.max_size_mb, "", fix))
    return facts, tuple(checks)


def _embedded(bundle: Bundle) -> str:
    """Return the layer whose inputs the reference has, or why it has none; empty without a reference."""
    if not (bundle.folder / REFERENCE).is_file():
        return ""
    reference = MonitoringReference.load(bundle)
    return reference.embedding.output.layer if reference.embedding else reference.no_embedding


def _contract(report: RunReport, final: ConfirmFacts, model: Path) -> Contract:
    processor, graph = Processor.current(), read_graph(model)
    rows = [row for row in winner_of(report).benchmark if row.target == final.target]
    return Contract(
        name=report.name,
        run_id=report.run_id,
        candidate=final.winner,
        signature=Signature.read(graph),
        target=final.target,
        session=final.session.options if final.session else None,
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


def _link_model(model: Path, folder: Path) -> None:
    """Link the model and its external data into the folder; they are read once, when it is archived."""
    (folder / MODEL).symlink_to(model)
    for weights in model_files(model)[1:]:
        link = folder / weights.relative_to(model.parent)
        if link.exists() or weights.name in (CONTRACT, GOLDEN, REFERENCE, REPORT):
            raise StageError(f"{model}: its external data {weights.name!r} has the name of another file of the bundle")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(weights)


def _save_golden(config: PackageConfig, contract: Contract, model: Path, golden: Golden, target: Path) -> None:
    """Save the first real samples with the outputs of the winner's file and of the source."""
    real = golden.real
    session = open_session(model, overrides=contract.session)
    sample_bytes = sum(a[:1].nbytes for a in (*real.inputs.values(), *real.outputs.values(), *real.outputs.values()))
    count = max(1, min(config.golden_samples, int(1000 * config.max_golden_kb / sample_bytes)))
    inputs, source = first_samples(real.inputs, count), first_samples(real.outputs, count)
    outputs = batched_inference(session, inputs).run(contract.best_batch)
    groups = {"inputs": inputs, "outputs": outputs, "source": source}
    arrays = {f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()}
    np.savez(target, allow_pickle=False, **arrays)


def _save_reference(config: PackageConfig, contract: Contract, model: Path, test: Split, target: Path) -> None:
    """Save what requests are compared with: features of the winner's inputs and outputs, and which are wrong."""
    chosen = np.unique(np.linspace(0, len(test) - 1, min(len(test), config.reference_samples)).astype(np.int64))
    session, embedded = _reference_session(contract, model, test.take(chosen[:REFERENCE_CHUNK]))

    def calls() -> Iterator[tuple[NamedArrays, NamedArrays]]:
        for start in range(0, len(chosen), REFERENCE_CHUNK):
            inputs = test.take(chosen[start : start + REFERENCE_CHUNK])
            yield inputs, batched_inference(session, inputs).run(contract.best_batch)

    labels = None if test.labels is None else test.labels[chosen]
    MonitoringReference.measure(contract.signature, calls(), labels, embedded).save(target)


def _reference_session(contract: Contract, model: Path, samples: NamedArrays) -> tuple[Any, EmbeddingOutput | str]:
    """Return a session that also has the embedding, and where it is; the plain one, and why, where there is none."""
    plain, batch = open_session(model, overrides=contract.session), contract.best_batch
    try:
        found = find_embedding(
            read_graph(model), contract.signature.primary_output or contract.signature.outputs[0].name
        )
        return open_embedding_session(model, found, plain, samples, [batch], overrides=contract.session), found
    except NoEmbedding as error:
        return plain, str(error)


def _write_documents(contract: Contract, report: RunReport, card: CardConfig, folder: Path) -> None:
    """Write everything but the model and the golden data."""
    weights = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and path.name != MODEL]
    files = {p.relative_to(folder).as_posix(): sha256_of([p]) for p in (folder / MODEL, *weights)}
    (folder / CONTRACT).write_text(contract.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / REPORT).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    documents: dict[str, Any] = {
        f"provenance/{name}": statement
        for name, statement in statements(report, files, sha256_of([folder / REPORT])).items()
    }
    (folder / "provenance").mkdir()
    for name, document in {**documents, "bom.json": bill_of_materials(contract, report, files)}.items():
        (folder / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    size = sum((folder / name).stat().st_size for name in files)
    (folder / MLMODEL).write_text(mlmodel_text(contract, report.started_at, size), encoding="utf-8")
    (folder / "README.md").write_text(model_card(contract, report, card), encoding="utf-8")
