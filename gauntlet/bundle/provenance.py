"""How the model came to be, as in-toto statements (https://github.com/in-toto/attestation, Statement v1).

Each gate is a test-result v0.1, the run is SLSA provenance v1 (https://slsa.dev/spec/v1.0/provenance).
"""

from importlib.metadata import version
from typing import Any

from gauntlet.bundle.evidence import gates_of
from gauntlet.core.artifact import Artifact
from gauntlet.core.run_report import RunReport, StageEntry

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SLSA_PROVENANCE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:onnx-gauntlet:run:1"
"""`externalParameters.config` is the run's configuration, from which a run is repeated with `gauntlet run`."""
BUILDER = "urn:onnx-gauntlet:builder"

Digests = dict[str, str]
"""SHA-256 by the name of a file in the bundle."""


def statements(report: RunReport, subjects: Digests, evidence: Digests) -> dict[str, dict[str, Any]]:
    """Return the statements by file name: one for each stage with a check, and one for the run.

    The subjects are the model's files: also gates of earlier stages are evidence for the model that came of them.
    `evidence` is the bundle's `report.json`, which has the value and the limit of every check, and its golden data.
    """
    described = _described(evidence)
    results = {}
    for number, entry in enumerate(gates_of(report), 1):
        line = f"-{entry.candidate}" if entry.candidate else ""
        results[f"{number:02}-{entry.stage}{line}.json"] = _statement(
            TEST_RESULT, _test_result(entry, described), subjects
        )
    return results | {"slsa.json": _statement(SLSA_PROVENANCE, _slsa(report, described), subjects)}


def _described(files: Digests) -> list[dict[str, Any]]:
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()]


def _statement(predicate_type: str, predicate: dict[str, Any], subjects: Digests) -> dict[str, Any]:
    return {
        "_type": STATEMENT,
        "subject": _described(subjects),
        "predicateType": predicate_type,
        "predicate": predicate,
    }


def _test_result(entry: StageEntry, evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a gate as a test result; a check that a person overrode is a warning."""
    passed = [check.name for check in entry.checks if check.passed]
    failed = [check.name for check in entry.checks if check.blocks]
    warned = [check.name for check in entry.checks if not check.passed and not check.blocks]
    return {
        "result": "FAILED" if failed else "WARNED" if warned else "PASSED",
        "configuration": evidence,
        "passedTests": passed,
        "warnedTests": warned,
        "failedTests": failed,
    }


def _slsa(report: RunReport, evidence: list[dict[str, Any]]) -> dict[str, Any]:
    materials: dict[str, Artifact] = {}
    for stage in ("data", "train"):
        entry = report.stage(stage)
        materials |= {f"{stage}/{name}": artifact for name, artifact in (entry.artifacts if entry else {}).items()}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"config": report.config},
            "internalParameters": {"environment": report.environment},
            "resolvedDependencies": [
                {"name": name, "digest": {"sha256": artifact.sha256}} for name, artifact in sorted(materials.items())
            ],
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"onnx-gauntlet": version("onnx-gauntlet")}},
            "metadata": {"invocationId": report.run_id, "startedOn": report.started_at},
            "byproducts": evidence,
        },
    }
