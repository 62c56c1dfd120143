"""`auto` becomes lists when a configuration is read: recipes for this processor, targets that are installed."""

from pathlib import Path

import pytest

from configs.loader import load
from gauntlet.core.errors import ConfigError
from tasks.benchmark.config import BenchmarkConfig
from tasks.quantize.auto import AUTO_BUDGET_S

AUTO = ("benchmark.deploy_targets=auto",)


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))


def test_nothing_is_added_where_no_other_runtime_is_installed() -> None:
    race = load("digits-small-cnn", AUTO).benchmark
    assert ([target.name for target in race.targets], race.deploy_targets) == (["ort-cpu"], ())


def test_target_that_is_not_valid_is_refused_as_without_auto() -> None:
    for wrong in ("[ort-cpu, {kind: nothing}]", "[ort-cpu, {kind: ort-cpu, level: f8}]", "ort-cpu"):
        with pytest.raises(ConfigError, match=r"benchmark\.targets"):
            load("digits-small-cnn", (*AUTO, f"benchmark.targets={wrong}"))


def test_time_for_recipes_is_limited_with_auto_and_only_then() -> None:
    assert load("digits-small-cnn", ("quantize=auto",)).quantize_budget_s == AUTO_BUDGET_S
    assert load("digits-small-cnn", ("quantize=auto", "quantize_budget_s=7")).quantize_budget_s == 7
    assert load("digits-small-cnn", ("quantize=[{kind: static}]",)).quantize_budget_s is None


def test_race_is_planned_for_the_objective() -> None:
    by_latency = load("digits-small-cnn", ("select.batch=8",)).race
    assert (by_latency.batch_sizes, by_latency.early_stopping) == ((8, 1), True)
    for objective in ("throughput", "size", "memory"):
        race = load("digits-small-cnn", (f"select.objective={objective}",)).race
        assert (race.batch_sizes, race.early_stopping) == ((1, 8), False)
    assert not BenchmarkConfig(early_stopping=False).with_selection("latency", 1).early_stopping
