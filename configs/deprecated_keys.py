"""Renamed configuration keys and checks: an old name works for one release, with a warning."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("gauntlet")


def _gigabytes(value: Any) -> Any:
    return value / 1e9 if isinstance(value, int | float) else value


def _placement(value: Any) -> Any:
    return "inputs_and_outputs" if value == "around" else value


@dataclass(frozen=True)
class RenamedKey:
    """One key under its old and its new name."""

    part: str
    """Dotted path of the part that holds the key; `*` is any element of a list."""
    old: str
    new: str
    convert: Callable[[Any], Any] = lambda value: value
    """Converts the old key's value to the new key's."""

    def value(self, value: Any) -> Any:
        """Convert a value; a list of choices element by element."""
        return [self.convert(choice) for choice in value] if isinstance(value, list) else self.convert(value)


RENAMED_KEYS = (
    RenamedKey("data", "shares", "split_fractions"),
    RenamedKey("data", "axes", "dynamic_axes"),
    RenamedKey("data", "high", "integer_high"),
    RenamedKey("data", "whole", "no_batch_axis"),
    RenamedKey("train", "answer", "primary_output"),
    RenamedKey("train", "sizes", "input_sizes"),
    RenamedKey("train", "folder", "code_folder"),
    RenamedKey("export", "folder", "code_folder"),
    RenamedKey("export", "translations", "custom_translation_table"),
    RenamedKey("export", "symbolics", "custom_symbolics"),
    RenamedKey("optimize.*", "folder", "code_folder"),
    RenamedKey("optimize.*", "pace", "latency_check"),
    RenamedKey("optimize.*", "bisect_s", "reduction_budget_s"),
    RenamedKey("optimize.*", "memory_bytes", "memory_gb", _gigabytes),
    RenamedKey("quantize.*", "method", "calibration_method"),
    RenamedKey("quantize.*", "placement", "qdq_placement", _placement),
    RenamedKey("quantize.*", "operators", "op_types"),
    RenamedKey("prune.*", "macs", "macs_fraction"),
    RenamedKey("portability", "elsewhere", "on_unsupported_processor"),
    RenamedKey("portability", "samples", "prediction_samples"),
    RenamedKey("portability", "images", "emulation_images"),
    RenamedKey("repair", "ranking_images", "sensitivity_images"),
    RenamedKey("repair", "predicting_images", "prediction_images"),
    RenamedKey("repair", "margin_db", "sqnr_margin_db"),
    RenamedKey("repair", "max_evaluations", "max_trials"),
    RenamedKey("benchmark", "also_ship_on", "deploy_targets"),
    RenamedKey("benchmark", "early_drop", "early_stopping"),
    RenamedKey("benchmark", "sessions", "session_variants"),
    RenamedKey("benchmark.targets.*", "javascript", "npm_environment"),
    RenamedKey("benchmark.targets.*", "cache", "engine_cache"),
    RenamedKey("benchmark.targets.*", "memory_bytes", "memory_gb", _gigabytes),
    RenamedKey("benchmark.session_variants.*", "memory_bytes", "memory_gb", _gigabytes),
    RenamedKey("select", "same_speed", "tie_tolerance"),
)

RENAMED_CHECKS = {
    "calibrate.test_images": "calibrate.test_overlap",
    "data.copies_left_out": "data.duplicates_removed",
    "export.frozen_values": "export.traced_constants",
    "prune.macs": "prune.macs_fraction",
    "repair.good": "repair.within_limits",
    "target.parity": "target.repeatability",
    "train.non_finite_answers": "train.non_finite_outputs",
}
"""Old name -> new name, where an override names a check."""


def rename_keys(values: Any) -> Any:
    """Return the values of a configuration file with the new names only.

    Raises:
        ValueError: when a key is present under both names.
    """
    if not isinstance(values, dict):
        return values
    for key in RENAMED_KEYS:
        values = _rename_in(values, key.part.split("."), key.part, key)
    overrides = values.get("overrides")
    if isinstance(overrides, list | tuple):
        values = values | {"overrides": [_override(override) for override in overrides]}
    return values


def rename_setting(path: str, value: Any) -> tuple[str, Any]:
    """Return path and value of a `--set path=value` under the new name."""
    words = path.split(".")
    for key in RENAMED_KEYS:
        part = key.part.split(".")
        depth = len(part)
        if len(words) > depth and words[depth] == key.old and all(map(_matches, part, words)):
            new = [*words[:depth], key.new, *words[depth + 1 :]]
            _warn(path, ".".join(new))
            return rename_setting(".".join(new), key.value(value) if len(words) == depth + 1 else value)
    return path, value


def _matches(part: str, word: str) -> bool:
    return word.isdecimal() if part == "*" else part == word


def _rename_in(values: Any, part: list[str], name: str, key: RenamedKey) -> Any:
    """Return the values with the key renamed in each matching part."""
    if part and part[0] == "*":
        if not isinstance(values, list | tuple):
            return values
        return [_rename_in(item, part[1:], name.replace("*", str(i), 1), key) for i, item in enumerate(values)]
    if not isinstance(values, dict):
        return values
    if part:
        child = values.get(part[0])
        return values if child is None else values | {part[0]: _rename_in(child, part[1:], name, key)}
    return _renamed(values, name, key)


def _renamed(values: dict[str, Any], part: str, key: RenamedKey) -> dict[str, Any]:
    if key.old not in values:
        return values
    old, new = f"{part}.{key.old}", f"{part}.{key.new}"
    if key.new in values:
        raise ValueError(f"{old} is the old name of {new}: set only {new}")
    _warn(old, new)
    return {
        key.new if name == key.old else name: key.value(value) if name == key.old else value
        for name, value in values.items()
    }


def _override(override: Any) -> Any:
    check = override.get("check") if isinstance(override, dict) else None
    if not isinstance(check, str) or check not in RENAMED_CHECKS:
        return override
    _warn(f"the check {check}", RENAMED_CHECKS[check])
    return override | {"check": RENAMED_CHECKS[check]}


def _warn(old: str, new: str) -> None:
    log.warning("%s is now called %s; the old name works until the next release", old, new)
