"""Old names of keys and checks work for one release, and the warning names the new one."""

import logging
from typing import Any

import pytest

from configs.deprecated_keys import RENAMED_KEYS, rename_keys
from configs.loader import load
from configs.schema import PipelineConfig


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"select": {"same_speed": 0.1}}, {"select": {"tie_tolerance": 0.1}}),
        ({"benchmark": {"early_drop": False}}, {"benchmark": {"early_stopping": False}}),
        (
            {"quantize": [{"kind": "static", "placement": "around"}]},
            {"quantize": [{"kind": "static", "qdq_placement": "inputs_and_outputs"}]},
        ),
        (
            {"benchmark": {"targets": [{"kind": "ort-cpu", "memory_bytes": 2_000_000_000}]}},
            {"benchmark": {"targets": [{"kind": "ort-cpu", "memory_gb": 2}]}},
        ),
        (
            {"prune": [{"kind": "structured", "macs": 0.25}]},
            {"prune": [{"kind": "structured", "macs_fraction": 0.25}]},
        ),
    ],
)
def test_old_key_means_the_new_one_and_warns(
    old: dict[str, Any], new: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gauntlet"):
        assert PipelineConfig.model_validate(old) == PipelineConfig.model_validate(new)
    assert len(caplog.messages) == 1
    assert "is now called" in caplog.messages[0]


def test_old_key_works_in_a_setting_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gauntlet"):
        config = load("digits-small-cnn", ("select.same_speed=0.1", "benchmark.also_ship_on=[]"))
    assert config.select.tie_tolerance == 0.1
    assert "select.same_speed is now called select.tie_tolerance" in caplog.text


def test_key_under_both_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"select.same_speed is the old name of select.tie_tolerance: set only"):
        PipelineConfig.model_validate({"select": {"same_speed": 0.1, "tie_tolerance": 0.1}})


def test_override_accepts_the_old_name_of_a_check() -> None:
    override = {"check": "prune.macs", "reason": "known and accepted"}
    assert PipelineConfig.model_validate({"overrides": [override]}).overrides[0].check == "prune.macs_fraction"


def test_new_names_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    config = PipelineConfig.model_validate({"quantize": "auto"})
    assert PipelineConfig.model_validate_json(config.model_dump_json()) == config
    assert not caplog.messages


@pytest.mark.parametrize("key", RENAMED_KEYS, ids=lambda key: f"{key.part}.{key.old}")
def test_every_old_key_is_renamed_wherever_its_part_is(key: Any) -> None:
    values: Any = {key.old: 1}
    for word in reversed(key.part.split(".")):
        values = [values] if word == "*" else {word: values}
    assert key.new in str(rename_keys(values))
