"""Lists of settings become candidates, and `auto` is what fits the machine and the objective."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError
from tasks.benchmark.config import BenchmarkConfig
from tasks.quantize.auto import AUTO_BUDGET_S

CHOICES: dict[str, tuple[Any, ...]] = {
    "weights": ("u8", "s8"),
    "per_channel": (True, False),
    "reduce_range": (True, False),
    "symmetric": (True, False),
}
SPACES = st.fixed_dictionaries(
    {}, optional={key: st.lists(st.sampled_from(values), min_size=1, unique=True) for key, values in CHOICES.items()}
)


def recipes(folder: Path, *written: dict[str, Any], settings: tuple[str, ...] = ()) -> list[str]:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"quantize": list(written)}), encoding="utf-8")
    return [recipe.name for recipe in load(str(file), settings).quantize]


@given(space=SPACES)
def test_recipe_becomes_the_product_of_its_lists(space: dict[str, list[Any]]) -> None:
    config = PipelineConfig.model_validate({"quantize": [{"kind": "static", **space}]})
    written = [tuple(getattr(recipe, key) for key in space) for recipe in config.quantize]
    assert written == list(product(*space.values()))
    assert PipelineConfig.model_validate_json(config.model_dump_json()) == config


def test_lists_are_of_one_recipe_and_may_hold_lists(tmp_path: Path) -> None:
    methods = [{"kind": "minmax"}, {"kind": "percentile", "percentile": [99.9, 99.99]}]
    assert recipes(
        tmp_path, {"kind": "static", "calibration_method": methods}, {"kind": "dynamic", "weights": ["u8", "s8"]}
    ) == [*("static-u8s8", "static-u8s8-percentile99.9", "static-u8s8-percentile99.99"), *("dynamic-u8", "dynamic-s8")]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"per_channel": [True, True]}, "two candidates named 'static-u8s8'; remove one of them"),
        ({"per_channel": []}, r"quantize.0.per_channel: \[\]: input should be a valid boolean"),
        ({"weights": ["u8", "s9"]}, "quantize.1.weights: 's9': input should be 'u8' or 's8'"),
        ({"activations": ["u8", "s8"], "weights": ["u8", "s8"]}, "no kernels for activations s8 with weights u8"),
        ({"wieghts": ["u8", "s8"]}, "quantize.0.wieghts: unknown key; did you mean 'weights'"),
    ],
)
def test_list_is_refused_when_a_choice_is_wrong_or_there_twice(
    tmp_path: Path, recipe: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recipes(tmp_path, {"kind": "static", **recipe})


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
