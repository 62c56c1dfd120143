"""Which commands an assistant may call with which arguments and settings: those that only read, and `run`."""

import argparse
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from configs.brought_model import is_model
from configs.loader import load
from configs.schema import PipelineConfig
from flows.cli.options import parser
from gauntlet.core.errors import ConfigError

READING: Mapping[str, tuple[str, ...]] = {
    "runs": ("last",),
    "show": ("run",),
    "compare": ("first", "second"),
    "validate": ("config", "data", "labels", "shape", "task"),
    "inspect": ("model",),
    "diagnose": ("model", "data", "layout"),
    "targets": (),
    "history": ("name",),
}
"""Command -> its arguments that write no file, and trust none."""
RUN = ("config", "data", "labels", "shape", "task", "set", "fresh")


@dataclass(frozen=True)
class OfferedCommand:
    """A command, with those of its arguments that an assistant may give."""

    name: str
    help: str
    actions: Mapping[str, argparse.Action]

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing."""
        return self.name in READING

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {name: _schema(action) for name, action in self.actions.items()},
            "required": [name for name, a in self.actions.items() if not a.option_strings and a.nargs in (None, "+")],
            "additionalProperties": False,
        }

    def words(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the command line.

        Raises:
            ConfigError: for an argument that is not offered, one that names code, or a setting that is not permitted.
        """
        options, places = list[str](), list[str]()
        chosen = dict(arguments)
        if settings := chosen.pop("set", None):
            chosen["set"] = permitted(str(chosen.get("config")), _texts(settings))
        for name, value in chosen.items():
            action = self.actions.get(name)
            if action is None:
                raise ConfigError(f"{self.name}: unknown argument {name!r}; available: {', '.join(self.actions)}")
            texts = _texts(value)
            if name != "set" and any(".py" in t.lower() or (self.only_reads and names_code(t)) for t in texts):
                raise ConfigError(f"{self.name}: {name}: code is run from the command line alone")
            if not action.option_strings:
                places += texts
            elif action.nargs == 0:
                options += [action.option_strings[-1]] if value is True else []
            else:
                options += [f"{action.option_strings[-1]}={text}" for text in texts]
        return [self.name, *options, "--", *places]


def offered_commands() -> dict[str, OfferedCommand]:
    """Return the commands whose folders are there, by name."""
    [commands] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    return {
        name: OfferedCommand(
            name, helps[name], {a.dest: a for a in commands.choices[name]._actions if a.dest in offered}
        )
        for name, offered in {**READING, "run": RUN}.items()
        if name in commands.choices
    }


def names_code(source: str) -> bool:
    """Return whether something is a configuration that names a function of the user's, which `validate` imports."""
    with suppress(ConfigError, OSError):
        return not is_model(source) and '"code_folder":' in load(source).model_dump_json()
    return False


def _schema(action: argparse.Action) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"} | ({"enum": [*action.choices]} if action.choices else {})
    kind = {"type": "boolean"} if action.nargs == 0 else {"type": "array", "items": text} if _is_list(action) else text
    return kind | {"description": (action.help or "").replace("%%", "%")}


def _is_list(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")


def _texts(value: Any) -> list[str]:
    return [str(part) for part in (value if isinstance(value, list) else [value])]


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
        is_tighter = type(old) in (int, float) and (new <= old if name.startswith("max_") else new >= old)
    if not is_tighter:
        raise ConfigError(f"set: {setting}: an assistant cannot loosen a gate; {key} is {old}")
    return f"{key}={int(new) if new.is_integer() else new}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # it is not tighter than anything
