"""Which recipes are repaired on which processor, in how much time, and under which names."""

import pytest
from processors import CASCADE_LAKE, HASWELL
from pydantic import ValidationError

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.runtime.processor import Processor
from tasks.quantize.static import StaticInt8
from wings.repair import AUTO_BUDGET_S, RepairConfig


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (("quantize=auto",), AUTO_BUDGET_S),
        (("quantize=auto", "repair.images=9"), AUTO_BUDGET_S),
        (("quantize=auto", "repair.budget_s=50"), 50),
        (("quantize=[{kind: static}]",), 120),
    ],
)
def test_repairs_of_auto_have_less_time_unless_it_is_set(settings: tuple[str, ...], seconds: float) -> None:
    assert load("digits-small-cnn", settings).repair.budget_s == seconds  # type: ignore[attr-defined]


def test_name_of_a_repaired_candidate_is_taken() -> None:
    values = {"optimize": [{"kind": "chain", "name": "static-u8s8-repaired"}], "quantize": [{"kind": "static"}]}
    with pytest.raises(ValidationError, match="two candidates named 'static-u8s8-repaired'; remove one of them"):
        PipelineConfig.model_validate(values)


@pytest.mark.parametrize("name", ["static-u8s8-repaired", "pruned-50-static-u8s8-repaired"])
def test_check_of_a_repaired_candidate_can_be_overridden(name: str) -> None:
    override = {"check": "a.b", "reason": "known and accepted", "candidate": name}
    pruned = [{"kind": "structured", "macs_fraction": 0.5}]
    values = {"quantize": [{"kind": "static"}], "prune": pruned, "overrides": [override]}
    assert PipelineConfig.model_validate(values).overrides[0].candidate == name
    with pytest.raises(ValidationError, match="unknown candidate"):
        PipelineConfig.model_validate(values | {"repair": {"enabled": False}})


def test_accepted_file_for_other_runtimes_has_no_stem() -> None:
    recipe, config = StaticInt8(qdq_placement="inputs"), RepairConfig()
    assert [config.can_repair(recipe, rejected=rejected) for rejected in (True, False)] == [True, False]
    assert config.can_repair(StaticInt8(), rejected=False)
    values = {"quantize": [{"kind": "static", "qdq_placement": "inputs"}]}
    override = {"check": "a.b", "reason": "known and accepted", "candidate": "static-u8s8-inputs-repaired"}
    assert PipelineConfig.model_validate(values | {"overrides": [override]})
    with pytest.raises(ValidationError, match="unknown candidate"):
        override = override | {"candidate": "static-u8s8-inputs-float-stem"}
        PipelineConfig.model_validate(values | {"overrides": [override]})


@pytest.mark.parametrize(
    ("recipe", "processor"),
    [
        (StaticInt8(), CASCADE_LAKE),
        (StaticInt8(reduce_range=True), HASWELL),
        (StaticInt8(weights="u8", per_channel=False), HASWELL),
        (StaticInt8(activations="s8", format="qoperator"), HASWELL),
    ],
)
def test_recipe_is_repaired_as_it_is_when_its_sums_do_not_saturate(recipe: StaticInt8, processor: Processor) -> None:
    assert recipe.without_saturation(processor) == recipe


def test_recipe_is_not_repaired_when_its_reduced_form_is_a_candidate_too() -> None:
    plain, reduced = StaticInt8(), StaticInt8(reduce_range=True)
    config, both = RepairConfig(), (plain, reduced)
    assert [config.can_repair(recipe, both, HASWELL) for recipe in both] == [False, True]
    assert [config.can_repair(recipe, both, CASCADE_LAKE) for recipe in both] == [True, True]
    assert config.can_repair(plain, (plain,), HASWELL)
