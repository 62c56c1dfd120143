"""The statements of a bundle follow their specifications."""

import json
from pathlib import Path

import jsonschema

from gauntlet.core.artifact import sha256_of

DIGEST = {"type": "object", "required": ["sha256"], "properties": {"sha256": {"pattern": "^[0-9a-f]{64}$"}}}
DESCRIPTOR = {"type": "object", "required": ["name", "digest"], "properties": {"digest": DIGEST}}
NAMES = {"type": "array", "items": {"type": "string"}}
STATEMENT = {
    "type": "object",
    "required": ["_type", "subject", "predicateType", "predicate"],
    "additionalProperties": False,
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {"type": "array", "minItems": 1, "items": DESCRIPTOR},
        "predicateType": {"type": "string", "format": "uri"},
        "predicate": {"type": "object"},
    },
}
TEST_RESULT = {
    "type": "object",
    "required": ["result", "configuration"],
    "additionalProperties": False,
    "properties": {
        "result": {"enum": ["PASSED", "WARNED", "FAILED"]},
        "configuration": {"type": "array", "items": DESCRIPTOR},
        "passedTests": NAMES,
        "warnedTests": NAMES,
        "failedTests": NAMES,
    },
}
SLSA = {
    "type": "object",
    "required": ["buildDefinition", "runDetails"],
    "properties": {
        "buildDefinition": {
            "required": ["buildType", "externalParameters"],
            "properties": {"resolvedDependencies": {"type": "array", "items": DESCRIPTOR}},
        },
        "runDetails": {
            "required": ["builder"],
            "properties": {
                "builder": {"required": ["id"]},
                "metadata": {"properties": {"startedOn": {"type": "string", "format": "date-time"}}},
                "byproducts": {"type": "array", "items": DESCRIPTOR},
            },
        },
    },
}


def test_every_gate_is_a_test_result_about_the_model(folder: Path) -> None:
    found = {path.name: json.loads(path.read_text()) for path in sorted((folder / "provenance").iterdir())}
    assert [*found] == ["01-data.json", "02-train.json", "03-accuracy-static-u8s8.json",
                        "04-portability-static-u8s8.json", "slsa.json"]  # fmt: skip
    for name, statement in found.items():
        jsonschema.validate(statement, STATEMENT)
        assert statement["subject"][0]["digest"]["sha256"] == sha256_of([folder / "model.onnx"])
        jsonschema.validate(statement["predicate"], SLSA if name == "slsa.json" else TEST_RESULT)
    assert found["03-accuracy-static-u8s8.json"]["predicate"]["passedTests"] == ["accuracy.max_drop"]
    unsure = found["04-portability-static-u8s8.json"]["predicate"]
    assert (unsure["result"], unsure["warnedTests"]) == ("WARNED", ["portability.worst"])


def test_provenance_names_the_data_and_the_report(folder: Path) -> None:
    provenance = json.loads((folder / "provenance" / "slsa.json").read_text())["predicate"]
    names = {one["name"] for one in provenance["buildDefinition"]["resolvedDependencies"]}
    assert {"data/train", "data/test", "train/model"} <= names
    named = {one["name"]: one["digest"]["sha256"] for one in provenance["runDetails"]["byproducts"]}
    assert named == {name: sha256_of([folder / name]) for name in ("report.json", "golden.npz", "contract.json")}
