"""Bundles of a known quality and cost: a classifier that reads its answer from the input, beside a chain of work."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_text
from evidence import seal_with_evidence

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, REPORT, Bundle, archive
from gauntlet.bundle.contract import Contract
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Check
from gauntlet.core.run_report import CandidateEntry, RunReport, StageEntry
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.request_log.log_format import REFERENCE
from wings.lifecycle.library.monitoring.reference import MonitoringReference

FEATURES, SIZE, CLASSES = 64, 256, 4
LABELS = ("ant", "bee", "cat", "dog")
FIRST_FLAG = CLASSES
"""The feature that decides whether a model errs: uniform in [0, 1)."""


def classifier(errors: float = 0.0, products: int = 1) -> onnx.ModelProto:
    """Return a model that errs where the flag is below `errors`, and computes so many matrix products besides."""
    pick, tell = np.zeros((FEATURES, CLASSES)), np.zeros((FEATURES, 1))
    pick[:CLASSES] = np.eye(CLASSES)
    tell[FIRST_FLAG] = 1
    names = ["h", *(f"r{i}" for i in range(products))]
    layers = " ".join(f"m{i} = MatMul({a}, w{i}) {b} = Relu(m{i})" for i, (a, b) in enumerate(pairwise(names)))
    weights = ", ".join(f"float[{SIZE},{SIZE}] w{i}" for i in range(products))
    return onnx_text.model(
        f"""
        classifier (float[batch,{FEATURES}] x) => (float[batch,{CLASSES}] y)
        <float[{FEATURES},{CLASSES}] pick, float[{FEATURES},1] tell, float[{CLASSES},{CLASSES}] shift, float[1] share,
         float[{FEATURES},{SIZE}] first, {weights}, float[{SIZE},{CLASSES}] nothing>
        {{
            right = MatMul(x, pick)
            flag = MatMul(x, tell)
            errs = Less(flag, share)
            factor = Cast<to=1>(errs)
            other = MatMul(right, shift)
            wrong = Mul(other, factor)
            h = MatMul(x, first)
            {layers}
            zero = MatMul(r{products - 1}, nothing)
            y = Sum(right, wrong, zero)
        }}
        """,
        {
            "pick": pick,
            "tell": tell,
            "shift": 2 * np.roll(np.eye(CLASSES), 1, axis=1),
            "share": [errors],
            "nothing": np.zeros((SIZE, CLASSES)),
        },
    )


def samples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return requests, shape (count, features), and their labels; the flags are spread evenly over [0, 1)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, FEATURES)).astype(np.float32)
    labels = rng.integers(0, CLASSES, count)
    x[:, :CLASSES] = np.eye(CLASSES)[labels]
    x[:, FIRST_FLAG] = rng.permutation(count) / count
    return x, labels


def make_bundle(
    folder: Path,
    errors: float = 0.0,
    products: int = 1,
    *,
    run_id: str = "run-1",
    report: RunReport | None = None,
    monitored: bool = False,
) -> Bundle:
    """Write a sealed bundle's folder, and a `.zip` beside it; a monitored one has a reference of 300 samples."""
    folder.mkdir(parents=True)
    onnx.save(classifier(errors, products), folder / MODEL)
    x, _ = samples(16)
    y = np.eye(CLASSES, dtype=np.float32)[x[:, :CLASSES].argmax(1)]
    np.savez(folder / GOLDEN, **{"inputs/x": x, "outputs/y": y})
    signature = Signature(
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", FEATURES)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=("batch", CLASSES)),),
        primary_output="y",
        layout="none",
        labels=LABELS,
    )
    session = {"graph_optimization_level": "ORT_ENABLE_ALL", "intra_op_num_threads": 1, "enable_cpu_mem_arena": True}
    contract = Contract(
        name="digits", run_id=run_id, candidate="small", signature=signature, target="ort-cpu", session=session
    )
    (folder / CONTRACT).write_text(contract.model_dump_json(indent=1))
    (folder / REPORT).write_text((report or run_report(run_id)).model_dump_json())
    if monitored:
        x, labels = samples(300)
        seal_with_evidence(folder)
        outputs = Predictor(Bundle.open(folder), threads=1).run({"x": x})
        MonitoringReference.measure(signature, [({"x": x}, outputs)], labels).save(folder / REFERENCE)
    seal_with_evidence(folder)
    archive(folder, folder.with_suffix(".zip"))
    return Bundle.open(folder)


def run_report(run_id: str = "run-1", *checks: Check, artifact: Artifact | None = None, **changes: object) -> RunReport:
    """Return the report of a run whose winner is `small`; the checks are those of its accuracy stage."""
    empty = {"cached": False, "seconds": 1.0, "peak_rss_bytes": 1, "facts": {}}
    stages = [
        StageEntry(stage="structure", checks=(Check.of("structure.nodes", 3, "<=", 9),), artifacts={}, **empty),
        StageEntry(stage="accuracy", candidate="small", checks=checks, artifacts={}, **empty),
        StageEntry(stage="accuracy", candidate="lost", checks=(Check.of("x", 1, "<=", 0),), artifacts={}, **empty),
    ]
    if artifact is not None:
        stages.append(StageEntry(stage="package", checks=(), artifacts={"bundle": artifact}, **empty))
    made = (("fp32", None, "accepted"), ("lost", "fp32", "rejected"), ("small", "lost", "accepted"))
    figures = {"reason": "", "accuracy": 0.97, "sqnr_db": 31.5, "size_bytes": 999}
    candidates = tuple(
        CandidateEntry.model_validate({"name": name, "parent": parent, "status": status} | figures)
        for name, parent, status in made
    )
    known = {"run_id": run_id, "name": "digits", "started_at": "2026-11-22T12:00:00+00:00", "verdict": "passed"}
    more = {"stopped_at": None, "reason": "2x", "winner": "small", "seconds": 1.0, "config": {}, "environment": {}}
    return RunReport.model_validate(known | more | {"stages": stages, "candidates": candidates} | changes)


def image_signature() -> Signature:
    """Return the signature of a model of gray 8x8 images."""
    how = Preprocessing(height=8, width=8, scale=1 / 255, mean=(0.0,), std=(1.0,))
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 1, 8, 8))
    return Signature(inputs=(spec,), outputs=(), preprocessing=how, labels=LABELS)
