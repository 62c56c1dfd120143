"""`auto` becomes lists when a configuration is read: recipes for this processor, targets that are installed."""

from pathlib import Path

import pytest

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError
from gauntlet.runtime.processor import Processor
from gauntlet.targets import environments, installed_targets
from gauntlet.targets.environments import NOTE, OPENVINO
from tasks.benchmark.config import BenchmarkConfig
from tasks.quantize.auto import AUTO_BUDGET_S

AUTO = ("benchmark.deploy_targets=auto",)
ADDED = ["openvino-f32", *(["openvino-bf16"] if Processor.current().has_bf16 else [])]


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))


@pytest.fixture
def openvino() -> None:
    """The note that a complete installation leaves; nothing here runs it."""
    place = environments.folder("openvino")
    place.mkdir(parents=True)
    (place / NOTE).write_text(OPENVINO.note)


def names(config: PipelineConfig) -> tuple[list[str], list[str]]:
    return [target.name for target in config.benchmark.targets], list(config.benchmark.deploy_targets)


def test_nothing_is_added_where_no_other_runtime_is_installed() -> None:
    assert names(load("digits-small-cnn", AUTO)) == (["ort-cpu"], [])


def test_environment_of_other_versions_is_not_taken_for_installed(openvino: None) -> None:
    (environments.folder("openvino") / NOTE).write_text("{}")
    assert names(load("digits-small-cnn", AUTO)) == (["ort-cpu"], [])


@pytest.mark.usefixtures("openvino")
def test_installed_runtime_takes_part_and_has_a_recipe_of_its_own() -> None:
    config = load("digits-small-cnn", (*AUTO, "quantize=auto"))
    assert names(config) == (["ort-cpu", *ADDED], ADDED)
    assert any(recipe.name.endswith("-inputs") for recipe in config.quantize)
    assert PipelineConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("listed", ["openvino-f32", "{kind: openvino, precision: f32}"])
def test_runtime_that_is_listed_already_is_not_listed_twice(listed: str) -> None:
    config = load("digits-small-cnn", (*AUTO, f"benchmark.targets=[ort-cpu, ort-openvino-f32, {listed}]"))
    assert names(config) == (["ort-cpu", "ort-openvino-f32", *ADDED], ADDED)


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("flags", "precisions"), [(set(), ["f32"]), ({"avx512_bf16"}, ["f32", "bf16"])])
def test_runtime_computes_in_what_the_processor_multiplies(
    flags: set[str], precisions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processor, "current", lambda: Processor("x86_64", frozenset(flags)))
    assert [target.declared_precision for target in installed_targets()] == precisions


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("benchmark.deploy_targets=openvino", "benchmark.deploy_targets: 'openvino': write auto, or a list of names"),
        ("benchmark.deploy_targets=[auto]", "deploy_targets: unknown target 'auto'"),
        ("quantize_budget_s=-1", "quantize_budget_s: -1: input should be greater than or equal to 0"),
        ("select.objective=energy", "select.objective: 'energy': input should be 'latency', 'throughput', 'size'"),
        ("select.min_reduction=0.5", "select.min_reduction: 0.5: input should be greater than or equal to 1"),
    ],
)
def test_bad_value_is_refused_with_what_is_allowed(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("digits-small-cnn", (setting,))
    assert message in str(caught.value)


def test_target_that_is_not_valid_is_refused_as_without_auto() -> None:
    for wrong in ("[ort-cpu, {kind: nothing}]", "[ort-cpu, {kind: openvino, precision: f8}]", "ort-cpu"):
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
