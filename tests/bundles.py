"""Bundles of real models, as the stage `package` makes them."""

import io
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from PIL import Image
from reported_runs import raced
from sklearn.datasets import load_digits

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CandidateEntry, RunReport, StageEntry
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.race.session_options import SessionVariant
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.targets import by_name
from gauntlet.targets.ort import OrtCpu
from tasks.package import PackageConfig, PackageFacts, package
from tasks.select import Decision

if TYPE_CHECKING:
    from conftest import Trained


def confirmation(winner: str = "fp32", target: str = "ort-cpu", **session: Any) -> Decision:
    """Return the decision for a winner, which runs in a session on the processor unless its target is another one."""
    options = SessionVariant(name=target, options=OrtCpu(**session).session_options(1))
    return Decision(
        winner=winner,
        target=target,
        session=options if target.startswith("ort-cpu") else None,
        reason="2.00x [1.90, 2.10] the speed of fp32 at batch 1",
        required_speedup=1.05,
        decisions=(),
    )


def run_report(model: Artifact, winner: str = "fp32", stages: tuple[StageEntry, ...] = (), **changes: Any) -> RunReport:
    """Return the record of a run that has confirmed its winner."""
    latencies = {1: 0.5, 8: 2.0, 32: 16.0}
    rows = tuple(raced(batch, ms, 2, 1.9, 2.1, "faster") for batch, ms in latencies.items())
    known = {"artifact": model, "size_bytes": model.size_bytes, "accuracy": 0.989, "sqnr_db": 38.2, "benchmark": rows}
    report = RunReport(
        run_id="20260131-120000-digits-1f2e",
        name="digits",
        started_at="2026-01-31T12:00:00+00:00",
        verdict="passed",
        stopped_at=None,
        reason="2.00x [1.90, 2.10] the speed of fp32 at batch 1",
        winner=winner,
        seconds=60,
        environment={"host": "secret-name", "python": "3.11", "packages": {"numpy": "2.4.6"}},
        config={"name": "digits"},
        stages=stages,
        candidates=(
            CandidateEntry(name="fp32", parent=None, status="accepted", reason="the reference", artifact=model),
            CandidateEntry(name="static-u8s8", parent="fp32", status="accepted", reason="2.00x", **known),
        ),
    )
    return report.replace(**changes)


def stage_entry(stage: str, report: Report[Any]) -> StageEntry:
    return StageEntry.model_validate_json(report.replace(stage=stage).model_dump_json())


def gate(stage: str, candidate: str | None, *checks: Check) -> StageEntry:
    made = {"cached": False, "seconds": 1, "peak_rss_bytes": 1, "facts": {}, "artifacts": {}}
    return StageEntry(stage=stage, candidate=candidate, checks=checks, **made)


def keep(proto: onnx.ModelProto, store: Store, folder: Path, external: bool = False) -> Artifact:
    """Put a model with its signature, or that of its graph, into a store."""
    (Signature.find(proto) or signature_from_graph(proto)).write(proto)
    path = folder / "kept.onnx"
    if not external:
        onnx.save(proto, path)
        return store.put(path)
    onnx.save(proto, path, save_as_external_data=True, location="kept.onnx.data", size_threshold=0)
    return store.put(path, folder / "kept.onnx.data")


def keep_golden(model: Path, samples: NamedArrays, store: Store, folder: Path) -> Artifact:
    outputs = batched_inference(open_session(model, threads=1), samples).run(8)
    Golden({"real": GoldenCase(samples, outputs)}, outputs).save(folder / "golden.npz")
    return store.put(folder / "golden.npz")


def pack(
    workspace: Workspace, model: Artifact, golden: Artifact, config: Mapping[str, Any] | None = None, **inputs: Any
) -> Report[PackageFacts]:
    """Run the stage `package`."""
    record = inputs.pop("report", None) or run_report(model, "static-u8s8")
    final = inputs.pop("final", None) or confirmation("static-u8s8")
    target = inputs.pop("target", None) or (OrtCpu() if final.session else by_name(final.target))
    given = {"report": record, "final": final, "target": target, "model": model, "golden": golden, "threads": 2}
    return package(PackageConfig(**(config or {})), workspace, **given | inputs)


def samples(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def make_keys(folder: Path, curve: type[ec.EllipticCurve] = ec.SECP256R1) -> tuple[Path, Path]:
    """Write a private and a public key as PEM files."""
    key = ec.generate_private_key(curve())
    private, public = folder / "key.pem", folder / "pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


digits = cache(load_digits)


def png(number: int) -> bytes:
    """Return one of scikit-learn's digits as an image file: 0 to 255."""
    pixels = np.round(digits().images[number] * 255 / 16).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def digits_report(trained: "Trained") -> RunReport:
    """Return the record of a run with real stages of the main line, and gates of two candidates."""
    check = Check.of("accuracy.max_drop", 0.001, "<=", 0.01)
    unsure = Check.of("portability.worst", 3.0, "<=", 1.0, severity="warning")
    made = {"data": trained.data, "train": trained.train, "export": trained.export}
    stages = tuple(stage_entry(stage, report) for stage, report in made.items())
    stages += (gate("accuracy", "static-u8s8", check), gate("portability", "static-u8s8", unsure))
    stages += (gate("accuracy", "another", check),)
    return run_report(trained.model, "static-u8s8", stages)


@pytest.fixture
def folder(signed: Path, tmp_path: Path) -> Path:
    """A signed bundle as a folder, which a test may change."""
    shutil.unpack_archive(signed, tmp_path / "digits")
    return tmp_path / "digits"
