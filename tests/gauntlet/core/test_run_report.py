"""The record of a run: it round-trips, and its JSON Schema describes every record that can be written."""

import json

import jsonschema
import pytest

from gauntlet.core.facts import Facts
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport, StageEntry

SCHEMA = RunReport.model_json_schema(mode="serialization")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def example(**changes: object) -> RunReport:
    known = {"run_id": "r", "name": "n", "started_at": "2026-01-01", "verdict": "passed", "stopped_at": None}
    known |= {"reason": "", "winner": None, "seconds": 1, "environment": {}, "config": {}, "stages": []}
    return RunReport.model_validate(known | {"candidates": []} | changes)


@pytest.mark.parametrize(
    "damage",
    [{"verdict": "maybe"}, {"seconds": "soon"}, {"schema_version": 3}, {"stages": [{"stage": "x"}]}, {"more": 1}],
)
def test_schema_refuses_when_the_record_is_damaged(damage: dict[str, object]) -> None:
    told = json.loads(example().model_dump_json())
    VALIDATOR.validate(told)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(told | damage)


def test_stage_finds_the_entry_when_a_candidate_ran_the_same_stage() -> None:
    common = {"stage": "numerics", "cached": False, "peak_rss_bytes": 0, "facts": {}, "checks": [], "artifacts": {}}
    run = example(stages=[common | {"seconds": 1}, common | {"seconds": 2, "candidate": "onnxslim"}])
    main, candidate = run.stage("numerics"), run.stage("numerics", "onnxslim")
    assert (main.seconds, candidate.seconds, run.stage("train")) == (1, 2, None)


def test_entry_with_other_facts_forgets_those_that_it_held_as_an_object() -> None:
    class Counted(Facts):
        number: int

    entry = StageEntry.of(Report(stage="count", facts=Counted(number=1)))
    assert entry.replace(seconds=2.0).known == Counted(number=1)
    assert entry.replace(facts={"number": 2}).known is None
