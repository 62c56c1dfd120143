"""Every limit of a budget is kept, missed, or not measured, and says so."""

from typing import Any

import pytest
from pydantic import ValidationError
from reported_runs import raced

from configs.schema import PipelineConfig
from gauntlet.race.budget import NO_BUDGET, Budget, over_budget
from gauntlet.race.confidence import percentile_bound

ROW = raced(8, 10.0, 2.0, 1.9, 2.1, "faster").replace(
    calls=400, p90_ms=12.0, p99_ms=15.0, mean_ms=10.5, images_per_second=762.0, peak_rss_bytes=150_000_000
)
SIZE_BYTES = 11_300_000
LIMITS = [
    ("max_p50_ms", {8: 10.0}, {8: 9.9}, 10.0),
    ("max_p90_ms", {8: 12.0}, {8: 11.0}, 12.0),
    ("max_p99_ms", {8: 15.0}, {8: 14.0}, 15.0),
    ("min_images_per_second", {8: 762.0}, {8: 800.0}, 762.0),
    ("max_size_mb", 11.3, 11.2, 11.3),
    ("max_peak_memory_mb", 150.0, 149.0, 150.0),
]


@pytest.mark.parametrize(("key", "kept", "missed", "value"), LIMITS, ids=[limit[0] for limit in LIMITS])
def test_limit_is_kept_at_its_value_and_missed_beyond_it(key: str, kept: Any, missed: Any, value: float) -> None:
    [check] = Budget.model_validate({key: kept}).checks("int8", [ROW], SIZE_BYTES)
    assert (check.name, check.passed) == (f"budget.{key}", True)
    [check] = Budget.model_validate({key: missed}).checks("int8", [ROW], SIZE_BYTES)
    assert check.blocks
    assert check.value == pytest.approx(value)
    assert check.detail.startswith("int8")
    assert f"budget.{key}" in check.remedy
    assert over_budget([check]).startswith(f"over the budget ({key} ")


def test_figure_that_was_not_measured_does_not_pass() -> None:
    budget = Budget(max_p99_ms={8: 99}, max_p50_ms={1: 99}, max_peak_memory_mb=1000)
    row = ROW.replace(p99_ms=None, calls=48, peak_rss_bytes=None)
    checks = {check.name: check for check in budget.checks("int8", [row], SIZE_BYTES)}
    assert all(check.blocks for check in checks.values())
    assert checks["budget.max_p99_ms"].detail.endswith("at batch 8: 48 calls are too few for this percentile")
    assert checks["budget.max_p50_ms"].detail == "int8 at batch 1: not measured"
    assert checks["budget.max_peak_memory_mb"].detail == "int8: not measured"


@pytest.mark.parametrize(("budget", "percentile"), [(Budget(max_p90_ms={1: 5}), 90), (Budget(max_p99_ms={1: 5}), 99)])
def test_race_makes_just_enough_calls_for_the_percentile(budget: Budget, percentile: int) -> None:
    assert percentile_bound(range(budget.least_calls), percentile) is not None
    assert percentile_bound(range(budget.least_calls - 1), percentile) is None
    config = PipelineConfig.model_validate({"benchmark": {"rounds": 12}, "budget": budget})
    assert config.race.rounds * config.race.min_calls >= budget.least_calls
    assert not config.race.early_stopping


def test_race_stays_as_it_is_without_a_budget() -> None:
    config = PipelineConfig()
    assert config.race == config.benchmark
    assert NO_BUDGET.checks("int8", [ROW], SIZE_BYTES) == ()
    assert PipelineConfig.model_validate({"budget": {"max_size_mb": 5}}).race.min_calls == config.benchmark.min_calls


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"max_p99_ms": {4: 10}}, "budget has a limit at batch size 4, which is not measured"),
        ({"max_p99_ms": {1: 0}}, "greater than 0"),
    ],
)
def test_budget_is_refused_when_it_makes_no_sense(budget: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PipelineConfig.model_validate({"budget": budget})
