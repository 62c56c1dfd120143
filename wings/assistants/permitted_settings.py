"""Which settings an assistant may give to a run: what is tried and how it is raced, and tighter limits of gates."""

import math
from collections.abc import Sequence
from typing import Any

from configs.brought_model import is_model
from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError

FREE = (
    "quantize",
    "quantize_budget_s",
    "prune",
    "select.objective",
    "select.batch",
    "benchmark.batch_sizes",
    "benchmark.rounds",
    "benchmark.block_ms",
    "benchmark.deploy_targets",
    "benchmark.session_variants",
)
"""Keys without a gate, and without code of the user's."""
GATES = ("accuracy", "evaluate", "numerics", "structure", "budget")
"""Parts whose limits, `max_...` and `min_...`, may be tightened."""
UNLIMITED = ("structure", "budget")
"""Parts in which a limit that is not set is none; elsewhere one follows from the problem."""


def permitted(source: str, settings: Sequence[str]) -> list[str]:
    """Return the settings for a run of a preset, a configuration or a model, whose limits have the defaults here.

    Raises:
        ConfigError: for one that loosens a gate, or sets anything else that is not free.
    """
    config = PipelineConfig() if is_model(source) else load(source)
    return [_permitted(config.model_dump(mode="json"), setting) for setting in settings]


def _permitted(config: dict[str, Any], setting: str) -> str:
    key, _, text = setting.partition("=")
    if any(f"{key}.".startswith(f"{free}.") for free in FREE):
        return setting
    part, _, name = key.partition(".")
    if part not in GATES or not name.startswith(("max_", "min_")) or "." in name:
        raise ConfigError(
            f"set: {key}: an assistant may set {', '.join(FREE)}, and tighten limits of {', '.join(GATES)}"
        )
    old, new = config[part].get(name), _number(text)
    if old is None:
        is_tighter = part in UNLIMITED and not math.isnan(new)
    else:
        is_tighter = _is_number(old) and (new <= old if name.startswith("max_") else new >= old)
    if not is_tighter:
        raise ConfigError(f"set: {setting}: an assistant cannot loosen a gate; {key} is {old}")
    return f"{key}={int(new) if new.is_integer() else new}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # it is not tighter than anything


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
