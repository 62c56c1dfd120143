"""A repaired candidate has a name and a time limit in the configuration."""

import pytest
from pydantic import ValidationError

from configs.loader import load
from configs.schema import PipelineConfig
from wings.repair import AUTO_BUDGET_S


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
