"""Package the confirmed winner as one bundle: model, contract, golden data, evidence and digests in one `.zip`.

The same inputs give the same bytes. Golden outputs, and what requests are compared with, are those of the target that
the winner is deployed on.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.bundle.bundle import Bundle, archive, seal
from gauntlet.bundle.contract import Contract
from gauntlet.bundle.loading import GoldenDifference, golden_differences
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.provenance import evidence
from gauntlet.bundle.raced_session import open_raced
from gauntlet.bundle.write import CardConfig, contract_of, link_model, save_golden, write_documents
from gauntlet.core.arrays import Array
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds
from gauntlet.core.ragged import comparable
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import RANDOM, REAL, Golden, GoldenCase
from gauntlet.metrics.error_metrics import centered_sqnr_db
from gauntlet.request_log.log_format import REFERENCE
from gauntlet.targets.base import BaseTarget
from tasks.select.decision import Decision

MAX_GOLDEN_SAMPLES = 16
"""Real samples in the bundle."""
MAX_GOLDEN_KB = 400.0
"""Of samples and outputs; one sample always stays."""
MAX_GOLDEN_ERROR = 1e-5
"""Largest difference between the packaged model's outputs and the winner's, relative to their range."""


class PackageConfig(Frozen):
    """What goes into the bundle of the winner."""

    card: CardConfig = Field(default_factory=CardConfig, description="for the model card, the bundle's `README.md`")
    reference_samples: int = Field(
        2000, ge=0, description="most test samples for `gauntlet monitor`; 0 for no reference"
    )


class PackageFacts(Facts):
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
    final: Decision,
    target: BaseTarget,
    threads: int,
    model: Artifact,
    golden: Artifact,
    test: Artifact | None = None,
) -> Report[PackageFacts]:
    """Make the bundle, and open it again: it must be whole, and its model give the outputs of the winner's file.

    `report` is the run's record so far, `final` its decision, `target` that of the winner, raced in so many `threads`
    where its options do not say, `model` its file, `golden` the source's outputs.
    Without `test`, the samples of the evaluation, the bundle has nothing that requests can be compared with.
    """
    folder = workspace.folder / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    kept = evidence(report)
    contract = contract_of(
        kept,
        workspace.path(model),
        candidate=final.winner,
        target=target,
        threads=threads,
        session=final.session.options if final.session else None,
    )
    link_model(workspace.path(model), folder, [REFERENCE])
    samples = Golden.load(workspace.path(golden))
    path, most, kilobytes = workspace.path(model), MAX_GOLDEN_SAMPLES, MAX_GOLDEN_KB
    session, _ = open_raced(contract, path, overrides=contract.session)
    contract = save_golden(contract, session, path, samples, folder, max_samples=most, max_kb=kilobytes)
    save = kinds("reference").get("save")
    if save and test is not None and config.reference_samples:
        split = read_split(workspace.path(test))
        save(contract, session, path, split, config.reference_samples, folder / REFERENCE)
    write_documents(contract, kept, config.card, folder)
    seal(folder)
    zipped = workspace.folder / "bundle.zip"
    archive(folder, zipped)
    pruned = any(entry.stage == "prune" for entry in kept.stages)  # a retrained network has outputs of its own
    lengths = {title: case for title, case in samples.cases.items() if title not in (REAL, RANDOM)}
    facts, checks = examine(zipped, None if pruned else lengths)
    return Report(facts=facts, checks=checks, artifacts={"bundle": workspace.store_file(zipped)})


def examine(path: Path, lengths: Mapping[str, GoldenCase] | None = None) -> tuple[PackageFacts, tuple[Check, ...]]:
    """Open a bundle as its users do, and return what it holds and the gate's checks.

    With `lengths`, the outputs for the golden samples, and at these lengths, must also resemble those of the source,
    which this gate compares again: the winner's own say nothing about whether the winner is right.
    """
    bundle = Bundle.open(path)
    damage = tuple(bundle.damage())
    golden = golden_differences(Predictor(bundle))
    worst = max(golden, key=lambda output: np.nan_to_num(output.max_rel_error, nan=np.inf))
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
    fix = "run again; the disk may be faulty"
    whole = Check.of("package.damaged_files", len(damage), "==", 0, "; ".join(damage), fix)
    detail = f"output {worst.output!r}, against the winner's file in the session that the contract names"
    fix = "run again; if it fails again, the model is not deterministic"
    same = Check.of("package.max_golden_error", worst.max_rel_error, "<=", MAX_GOLDEN_ERROR, detail, fix)
    return facts, (whole, same, *([] if lengths is None else [_source_check(bundle, lengths)]))


def _source_check(bundle: Bundle, lengths: Mapping[str, GoldenCase]) -> Check:
    """Check that every output is nearer to the source's than a constant is, or equal to it for half of the values.

    Floats alone count at other lengths. One that the target refuses is left out: whoever sends it learns that.
    """
    predictor, sets, off = Predictor(bundle), bundle.contract.signature.sets, list[str]()
    for at, case in {"": bundle.source_golden(), **lengths}.items():
        with suppress(*([StageError] if at else [])):
            outputs = predictor.run(case.inputs)
            wrong = [name for name, expected in case.outputs.items() if not _resembles(outputs.get(name), expected)]
            wrong = [name for name in wrong if not at or case.outputs[name].dtype.kind == "f"]
            off += [f"{name} {at}".strip() for name in wrong if name not in sets]
    fix = "report it: a gate before this one should have refused the model"
    return Check.of("package.outputs_unlike_source", len(off), "==", 0, f"outputs {off}" if off else "", fix)


def _resembles(actual: Array | None, expected: Array) -> bool:
    if actual is None or not (pair := comparable([actual], [expected])):
        return False
    [(actual, expected)] = pair
    if expected.dtype.kind == "f":
        return centered_sqnr_db(actual, expected) > 0
    return bool(np.mean(actual == expected) >= 0.5) if expected.size else True


def _embedded(bundle: Bundle) -> str:
    """Return the layer whose inputs the reference has, or why it has none; empty without a reference."""
    read = kinds("reference").get("embedding")
    if read is None or not (bundle.folder / REFERENCE).is_file():
        return ""
    embedding = read(bundle)
    return embedding if isinstance(embedding, str) else str(embedding.layer)
