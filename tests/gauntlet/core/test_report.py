"""A check passes only when a number says so; reports and records of runs survive JSON."""

import json
import math

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported_runs import run

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Number
from gauntlet.core.report import OPERATORS, Check, Report
from gauntlet.core.run_report import RunReport

OPS = st.sampled_from(sorted(OPERATORS))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
CHECKS = st.builds(
    Check,
    name=st.just("stage.metric"),
    value=st.none() | NUMBERS,
    op=OPS,
    limit=NUMBERS,
    unit=st.sampled_from(["", "dB"]),
    severity=st.sampled_from(["error", "warning"]),
    detail=st.text(max_size=20),
    override=st.none() | st.text(min_size=1, max_size=20),
)


class Measured(Facts):
    """Facts of a made-up stage."""

    number: Number
    series: tuple[Number, ...]
    by_batch: dict[int, tuple[Number, ...]]


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(op=OPS, limit=NUMBERS, value=st.sampled_from([None, math.nan]))
def test_check_never_passes_when_value_is_missing_or_nan(op: str, limit: float, value: float | None) -> None:
    assert Check(name="a.b", value=value, op=op, limit=limit).passed is False


@given(op=OPS, value=NUMBERS)
def test_check_never_passes_when_limit_is_nan(op: str, value: float) -> None:
    assert Check(name="a.b", value=value, op=op, limit=math.nan).passed is False


@given(value=st.floats(allow_nan=False), limit=st.floats(allow_nan=False))
def test_check_agrees_with_arithmetic_when_both_are_numbers(value: float, limit: float) -> None:
    passed = {op: Check(name="a.b", value=value, op=op, limit=limit).passed for op in OPERATORS}
    assert passed == {
        "<=": value <= limit,
        ">=": value >= limit,
        "<": value < limit,
        ">": value > limit,
        "==": value == limit,
    }


@given(check=CHECKS, lie=st.booleans())
def test_check_derives_passed_when_json_lies(check: Check, lie: bool) -> None:
    told = json.loads(check.model_dump_json()) | {"passed": lie}
    assert Check.model_validate_json(json.dumps(told)).passed is check.passed
    assert Check.model_validate(told).passed is check.passed


@given(check=CHECKS)
def test_check_blocks_only_when_it_is_a_failed_error_without_override(check: Check) -> None:
    assert check.blocks == (not check.passed and check.severity == "error" and check.override is None)


@pytest.mark.parametrize(("value", "text"), [(None, "missing"), (math.nan, "nan"), (0.5, "0.5 dB")])
def test_check_text_tells_value_limit_and_way_out_when_it_fails(value: float | None, text: str) -> None:
    check = Check(name="a.b", value=value, op=">=", limit=3, unit="dB", detail="sample 4", remedy="try again")
    assert text in str(check)
    assert str(check).endswith("must be >= 3 dB; sample 4. Fix: try again")


def test_check_of_a_fact_is_told_in_words_without_its_number() -> None:
    fact = Check(name="a.unresolved", value=1, op="==", limit=0, detail="nothing could be lost", remedy="bring more")
    assert str(fact) == "a.unresolved: nothing could be lost. Fix: bring more"
    assert "3 must be == 0" in str(fact.replace(value=3))
    assert "1 must be == 0" in str(fact.replace(detail=""))


@given(
    number=NUMBERS,
    series=st.lists(NUMBERS, max_size=4),
    by_batch=st.dictionaries(st.integers(1, 64), st.lists(NUMBERS, max_size=3).map(tuple), max_size=3),
    checks=st.lists(CHECKS, max_size=3),
    seconds=NUMBERS,
)
def test_report_is_the_same_when_it_went_through_json(
    number: float, series: list[float], by_batch: dict[int, tuple[float, ...]], checks: list[Check], seconds: float
) -> None:
    facts = Measured(number=number, series=tuple(series), by_batch=by_batch)
    artifact = Artifact(name="a", sha256="0" * 64, size_bytes=1, path="00/a")
    report = Report(stage="s", facts=facts, checks=tuple(checks), artifacts={"model": artifact}, seconds=seconds)
    text = report.model_dump_json()
    again = Report[Measured].model_validate_json(text)
    assert again.model_dump_json() == text
    assert same(again.facts.number, number)
    assert same(again.seconds, seconds)
    assert all(same(a, b) for a, b in zip(again.facts.series, series, strict=True))
    assert again.facts.by_batch.keys() == by_batch.keys()
    assert again.artifacts == report.artifacts
    assert [c.passed for c in again.checks] == [c.passed for c in checks]


def test_report_writes_strict_json_when_facts_are_not_finite() -> None:
    facts = Measured(number=math.nan, series=(math.inf, -math.inf), by_batch={1: (math.nan,)})
    text = Report(stage="s", facts=facts).model_dump_json()
    told = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert told["facts"] == {"number": "NaN", "series": ["Infinity", "-Infinity"], "by_batch": {"1": ["NaN"]}}


def test_report_enforces_every_failed_error_when_some_checks_fail() -> None:
    def check(name: str, value: float, severity: str = "error", override: str | None = None) -> Check:
        return Check(name=name, value=value, op="<=", limit=1, severity=severity, override=override)

    facts = Measured(number=0, series=(), by_batch={})
    good, bad, nan = check("s.good", 1), check("s.bad", 2), check("s.nan", math.nan)
    harmless = (check("s.warns", 2, severity="warning"), check("s.excused", 2, override="known, and accepted"))
    with pytest.raises(GateFailed) as caught:
        Report(stage="s", facts=facts, checks=(good, bad, nan, *harmless)).raise_if_blocked()
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["s.bad", "s.nan"]
    assert Report(stage="s", facts=facts, checks=(good, *harmless)).failures == ()


SCHEMA = RunReport.model_json_schema(mode="serialization")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize(
    "damage",
    [{"verdict": "maybe"}, {"seconds": "soon"}, {"schema_version": 3}, {"stages": [{"stage": "x"}]}, {"more": 1}],
)
def test_schema_refuses_when_the_record_is_damaged(damage: dict[str, object]) -> None:
    told = json.loads(run().model_dump_json())
    VALIDATOR.validate(told)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(told | damage)


def test_stage_finds_the_entry_when_a_candidate_ran_the_same_stage() -> None:
    common = {"stage": "numerics", "cached": False, "peak_rss_bytes": 0, "facts": {}, "checks": [], "artifacts": {}}
    report = run(stages=[common | {"seconds": 1}, common | {"seconds": 2, "candidate": "onnxslim"}])
    main, candidate = report.stage("numerics"), report.stage("numerics", "onnxslim")
    assert (main.seconds, candidate.seconds, report.stage("train")) == (1, 2, None)
