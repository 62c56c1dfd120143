"""The record of a run: it round-trips, and its JSON Schema describes every record that can be written."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport, StageEntry

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
WORDS = st.text(max_size=12)
ARTIFACTS = st.builds(Artifact, name=WORDS, sha256=WORDS, size_bytes=st.integers(0, 10**12), path=WORDS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(WORDS, JSON, max_size=2)
CHECKS = st.builds(
    Check,
    name=WORDS,
    value=st.none() | NUMBERS,
    op=st.sampled_from(["<=", ">=", "<", ">", "=="]),
    limit=NUMBERS,
    severity=st.sampled_from(["error", "warning"]),
    override=st.none() | WORDS,
)
STAGES = st.builds(
    StageEntry,
    stage=WORDS,
    candidate=st.none() | WORDS,
    cached=st.booleans(),
    seconds=NUMBERS,
    peak_rss_bytes=st.integers(0, 10**12),
    facts=OBJECTS,
    checks=st.lists(CHECKS, max_size=2).map(tuple),
    artifacts=st.dictionaries(WORDS, ARTIFACTS, max_size=1),
)
ROWS = st.builds(
    BenchmarkRow,
    target=WORDS,
    batch=st.integers(1, 64),
    median_ms=NUMBERS,
    speedup=NUMBERS,
    speedup_low=NUMBERS,
    speedup_high=NUMBERS,
    verdict=st.sampled_from(["faster", "slower", "not resolved", "reference"]),
)
CANDIDATES = st.builds(
    CandidateEntry,
    name=WORDS,
    parent=st.none() | WORDS,
    status=st.sampled_from(["accepted", "rejected"]),
    reason=WORDS,
    accuracy=st.none() | NUMBERS,
    sqnr_db=st.none() | NUMBERS,
    size_bytes=st.none() | st.integers(0, 10**12),
    artifact=st.none() | ARTIFACTS,
    benchmark=st.lists(ROWS, max_size=2).map(tuple),
)
RUNS = st.builds(
    RunReport,
    run_id=WORDS,
    name=WORDS,
    started_at=WORDS,
    verdict=st.sampled_from(["passed", "failed"]),
    stopped_at=st.none() | WORDS,
    reason=WORDS,
    winner=st.none() | WORDS,
    seconds=NUMBERS,
    environment=OBJECTS,
    config=OBJECTS,
    links=st.dictionaries(WORDS, WORDS, max_size=1),
    stages=st.lists(STAGES, max_size=2).map(tuple),
    candidates=st.lists(CANDIDATES, max_size=2).map(tuple),
)
SCHEMA = RunReport.model_json_schema(mode="serialization")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def example(**changes: object) -> RunReport:
    known = {"run_id": "r", "name": "n", "started_at": "2026-01-01", "verdict": "passed", "stopped_at": None}
    known |= {"reason": "", "winner": None, "seconds": 1, "environment": {}, "config": {}, "stages": []}
    return RunReport.model_validate(known | {"candidates": []} | changes)


@given(run=RUNS)
def test_run_report_is_the_same_when_it_went_through_json(run: RunReport) -> None:
    text = run.model_dump_json()
    assert RunReport.model_validate_json(text).model_dump_json() == text


@settings(max_examples=100)
@given(run=RUNS)
def test_schema_accepts_every_record_when_dumped(run: RunReport) -> None:
    VALIDATOR.validate(json.loads(run.model_dump_json()))


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
