"""From a YAML file and `--set` words to a checked configuration, or to one clear error."""

import difflib
import inspect
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from configs.schema import PipelineConfig
from tasks.errors import ConfigError

PRESETS = Path(__file__).parent


def load(source: str, settings: tuple[str, ...] = ()) -> PipelineConfig:
    """Read a configuration.

    Args:
        source: a YAML file, or the name of a preset (`digits-resnet18`).
        settings: `key.path=value` words; a list's element is named by its number, a value is written as in YAML.

    Raises:
        ConfigError: naming the file, the key, the value and what is allowed.
    """
    path = _find(source)
    values = _parse(path)
    for setting in settings:
        _apply(values, setting)
    try:
        return PipelineConfig.model_validate(values)
    except ValidationError as error:
        told: dict[str, list[str]] = {}  # a value that may be of several types has one finding a type
        for problem in error.errors():
            about, _, message = _explain(problem).rpartition(": ")
            told.setdefault(about, []).append(message)
        lines = [f"{path}: {about}{': ' if about else ''}{', or '.join(found)}" for about, found in told.items()]
        raise ConfigError("\n".join(lines)) from error


def presets() -> dict[str, Path]:
    """Return the files that ship, by name."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


def _find(source: str) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    if source in presets():
        return presets()[source]
    raise ConfigError(
        f"{source}: no such file or preset{_hint(path.stem, [*presets()])} (presets: {', '.join(presets())})"
    )


def _hint(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _parse(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values, this is {type(values).__name__}")
    return values


def _apply(values: dict[str, Any], setting: str) -> None:
    """Write one `key.path=value` into the nested values."""
    key, separator, text = setting.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {setting}: write key.path=value, for example --set train.epochs=5")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {setting}: the value is not YAML: {error}") from error
    if isinstance(value, str):
        value = _number(value)
    *parents, last = key.split(".")
    if parents and parents[0] in ("optimize", "quantize", "overrides"):  # an element of a list that the file leaves out
        values.setdefault(parents[0], PipelineConfig().model_dump(mode="json")[parents[0]])
    place: Any = values
    for name in parents:
        place = _step(place, name, setting)
    if isinstance(place, list):
        place[_index(place, last, setting)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"--set {setting}: '{'.'.join(parents)}' is {place!r} and has no keys")


def _number(text: str) -> float | str:
    """Read 1e-12 as a number: YAML 1.1 wants a point in it, people do not write one."""
    try:
        return float(text)
    except ValueError:
        return text


def _step(place: Any, name: str, setting: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, name, setting)]
    if isinstance(place, dict):
        if place.get(name) is None:
            place[name] = {}
        return place[name]
    raise ConfigError(f"--set {setting}: {name!r} lies under a plain value, {place!r}")


def _index(place: list[Any], name: str, setting: str) -> int:
    if name.isdecimal() and int(name) < len(place):
        return int(name)
    raise ConfigError(f"--set {setting}: {name!r} is no element of a list of {len(place)}; write 0 to {len(place) - 1}")


def _explain(problem: Any) -> str:
    """Say one of pydantic's findings as key, value, and what is allowed."""
    location = [part for part in problem["loc"] if part != "function-after"]
    model, key = _walk(location)
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden" and model is not None:
        allowed = [*model.model_fields]
        return f"{key}: unknown key{_hint(str(location[-1]), allowed)} (allowed: {', '.join(allowed)})"
    if not key:
        return message
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        expected = problem["ctx"].get("expected_tags")
        kind = problem["ctx"].get("tag", "missing")
        return f"{key}.kind: {kind}" + (f" (allowed: {expected})" if expected else "; a kind is required")
    value = "" if problem["type"] == "missing" else f" {problem['input']!r}:"
    return f"{key}:{value} {message[:1].lower()}{message[1:]}"


def _walk(location: list[str | int]) -> tuple[type[BaseModel] | None, str]:
    """Follow a location through the schema; return the innermost model and the key as the user writes it.

    Pydantic puts the tag of a union's variant into the location; a user never wrote that, so it is left out.
    """
    model: type[BaseModel] | None = PipelineConfig
    options: list[type[BaseModel]] = []
    key: list[str] = []
    leaf = False
    for part in location:
        tagged = [o for o in options if o.model_fields["kind"].default == part] if len(options) > 1 else []
        if tagged:
            model, options = tagged[0], []
            continue
        if leaf and isinstance(part, str):  # the tag of one type of several
            continue
        key.append(str(part))
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        options = _models(field.annotation) if field else []
        leaf = field is not None and not options and typing.get_origin(field.annotation) is not dict
        model = options[0] if len(options) == 1 else model if not options and field is None else None
    return model, ".".join(key)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type, inside unions, tuples and annotations."""
    if inspect.isclass(annotation) and not typing.get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for argument in typing.get_args(annotation) for model in _models(argument)]
