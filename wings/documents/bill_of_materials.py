"""The bundle's bill of materials: CycloneDX 1.6 as JSON (https://cyclonedx.org/docs/1.6/json/), with a model card."""

import math
import uuid
from importlib.metadata import version
from typing import Any

from gauntlet.bundle.contract import Contract
from gauntlet.bundle.provenance import winner_of
from gauntlet.core.run_report import BenchmarkRow, RunReport
from gauntlet.core.signature import TensorSpec

NAMESPACE = uuid.UUID("7c0c8c1f-6a0b-5f0e-9a55-0d6f2f3c1b77")


def bill_of_materials(contract: Contract, report: RunReport, files: dict[str, str]) -> dict[str, Any]:
    """Return the document; `files` are the model's, SHA-256 by name, the ONNX file first."""
    name, digest = next(iter(files.items()))
    data = report.stage("data")
    datasets = {f"data-{split}": artifact.sha256 for split, artifact in (data.artifacts if data else {}).items()}
    model: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": name,
        "name": contract.name,
        "version": contract.run_id,
        "description": f"{contract.candidate}: {report.reason}",
        "hashes": [_sha256(digest)],
        "modelCard": _model_card(contract, report, list(datasets)),
    }
    components: list[dict[str, Any]] = [
        {"type": "file", "bom-ref": file, "name": file, "hashes": [_sha256(sha256)]}
        for file, sha256 in files.items()
        if file != name
    ]
    components += [
        {"type": "data", "bom-ref": ref, "name": ref, "hashes": [_sha256(sha256)], "data": [{"type": "dataset"}]}
        for ref, sha256 in datasets.items()
    ]
    tool = {"type": "application", "name": "onnx-gauntlet", "version": version("onnx-gauntlet")}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, contract.run_id + digest)}",
        "version": 1,
        "metadata": {"timestamp": report.started_at, "tools": {"components": [tool]}, "component": model},
        "components": [*components, *_packages(report)],
    }


def _model_card(contract: Contract, report: RunReport, datasets: list[str]) -> dict[str, Any]:
    signature, entry, machine = contract.signature, winner_of(report), contract.processor or "one machine"
    metrics = [_metric("accuracy on the test samples", entry.accuracy), _metric("SQNR, in dB", entry.sqnr_db)]
    raced = [row for row in entry.benchmark if row.target == contract.target and row.verdict != "reference"]
    metrics += [_speedup(row) for row in raced]
    metrics += [_metric(f"latency at batch {time.batch}, in ms", time.median_ms) for time in contract.latencies]
    return {
        "modelParameters": {
            "task": signature.task,
            "datasets": [{"ref": ref} for ref in datasets],
            "inputs": [{"format": _tensor(spec)} for spec in signature.inputs],
            "outputs": [{"format": _tensor(spec)} for spec in signature.outputs],
        },
        "quantitativeAnalysis": {"performanceMetrics": [metric for metric in metrics if metric]},
        "considerations": {
            "technicalLimitations": [f"The speed was proven on {machine}, target {contract.target}, and on no other."]
        },
    }


def _metric(kind: str, value: float | None) -> dict[str, Any] | None:
    return None if value is None or not math.isfinite(value) else {"type": kind, "value": f"{value:.6g}"}


def _speedup(row: BenchmarkRow) -> dict[str, Any]:
    interval = {"lowerBound": f"{row.speedup_low:.6g}", "upperBound": f"{row.speedup_high:.6g}"}
    return {
        "type": f"speed-up over the reference at batch {row.batch}, 95 % interval",
        "value": f"{row.speedup:.6g}",
        "confidenceInterval": interval,
    }


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def _packages(report: RunReport) -> list[dict[str, str]]:
    """Return the Python packages that made the model."""
    packages = report.environment.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{v}",
            "name": name,
            "version": str(v),
            "purl": f"pkg:pypi/{name}@{v}",
        }
        for name, v in sorted(versions.items())
    ]
