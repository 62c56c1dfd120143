"""How the model came to be, as in-toto statements (https://github.com/in-toto/attestation, Statement v1).

Each gate is a test-result v0.1, the run is SLSA provenance v1 (https://slsa.dev/spec/v1.0/provenance).
"""

from importlib.metadata import version
from typing import Any

from gauntlet.core.artifact import Artifact
from gauntlet.core.run_report import CandidateEntry, RunReport, StageEntry


def evidence(report: RunReport) -> RunReport:
    """Return the report with the stages of the main line and of the winner's line alone, and all race results.

    It is a snapshot, taken before the bundle is made: `seconds` end there, and the host's name is left out.
    """
    line = {None, *lineage(report)}
    return report.replace(
        stages=tuple(entry for entry in report.stages if entry.candidate in line),
        environment={key: value for key, value in report.environment.items() if key != "host"},
        links={},
    )


def winner_of(report: RunReport) -> CandidateEntry:
    """Return the winner's entry; `StopIteration` for a report without one."""
    return next(candidate for candidate in report.candidates if candidate.name == report.winner)


def lineage(report: RunReport) -> tuple[str, ...]:
    """Return the names of the winner and of the candidates that it was made from, the winner first."""
    parents, name, names = {c.name: c.parent for c in report.candidates}, report.winner, []
    while name is not None:
        names.append(name)
        name = parents.get(name)
    return tuple(names)


def evaluation(report: RunReport) -> StageEntry | None:
    """Return the stage `evaluate` of the winner, or of the nearest network that it was made from."""
    entries = (report.stage("evaluate", name) for name in (*lineage(report), None))
    return next((entry for entry in entries if entry is not None), None)


def temperature(report: RunReport) -> float | None:
    """Return the temperature that calibrates the winner's confidence; None where none was fitted."""
    entry = evaluation(report)
    calibration = entry.facts.get("calibration") if entry else None
    value = calibration.get("temperature") if isinstance(calibration, dict) else None
    return float(value) if isinstance(value, int | float) else None


def gates_of(report: RunReport) -> tuple[StageEntry, ...]:
    """Return the stages that have a check, in the order in which they ran."""
    return tuple(entry for entry in report.stages if entry.checks)


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
    `evidence` is the bundle's `report.json`, which has the value and the limit of every check, its contract, its golden
    data and what requests are compared with.
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
            "resolvedDependencies": _described({name: materials[name].sha256 for name in sorted(materials)}),
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"onnx-gauntlet": version("onnx-gauntlet")}},
            "metadata": {"invocationId": report.run_id, "startedOn": report.started_at},
            "byproducts": evidence,
        },
    }
