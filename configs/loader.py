"""Load a configuration from a YAML file and `--set` arguments."""

import difflib
import reprlib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError, one_line, without_password
from gauntlet.core.kinds import removed
from gauntlet.core.unions import models_of

PRESETS = Path(__file__).parent
SCHEMA_FILE = PRESETS / "pipeline.schema.json"
"""What `gauntlet validate --schema` prints, for editors."""
SHORT = reprlib.Repr()
"""Writes the first parts of a value: a few lines of YAML with aliases may make one of gigabytes."""
SHORT.maxstring = SHORT.maxother = 10_000


class _Loader(yaml.SafeLoader):
    """Reads true and false as booleans, and no other words: in YAML 1.1, the key `on` of a target would be `true`.

    A date stays text.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is there twice, of which the last would win silently."""
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


LEFT_OUT = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in LEFT_OUT or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(source: str, settings: tuple[str, ...] = ()) -> PipelineConfig:
    """Read a configuration.

    Args:
        source: a YAML file, or the name of a preset (`digits-resnet18`).
        settings: `key.path=value`; list elements by index, values in YAML syntax.

    Raises:
        ConfigError: with the file, the key, the value and the allowed values.
    """
    path = _find(source)
    return validated(path, _parse(path), settings)


def validated(path: Path, values: dict[str, Any], settings: tuple[str, ...] = ()) -> PipelineConfig:
    """Write settings into the values of a configuration, and validate them; `path` names them in messages.

    Raises:
        ConfigError: as `load`.
    """
    for setting in settings:
        _apply(values, setting)
    try:
        return PipelineConfig.model_validate(values)
    except ValidationError as error:
        messages: dict[str, list[str]] = {}  # a union gives one message per type
        for problem in error.errors():
            subject, _, message = _explain(problem).rpartition(": ")
            messages.setdefault(subject, []).append(message)
        lines = [f"{path}: {subject}{': ' if subject else ''}{', or '.join(m)}" for subject, m in messages.items()]
        raise ConfigError("\n".join(lines)) from error


def written(values: dict[str, Any]) -> str:
    """Return the text of a configuration file; by its first line, an editor finds the schema of this installation."""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return f"# yaml-language-server: $schema={SCHEMA_FILE.as_uri()}\n{text}"


def given_libraries(model: str, settings: Iterable[str]) -> tuple[Path, ...]:
    """Return the `operator_libraries` of the settings: a model is tried with them before it has a configuration.

    Raises:
        ConfigError: as `load`.
    """
    own = [setting for setting in settings if setting.partition("=")[0] == "operator_libraries"]
    return validated(Path(model), {"name": "model"}, tuple(own)).operator_libraries if own else ()


def presets() -> dict[str, Path]:
    """Return the configurations that ship with the project, by name."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


def _find(source: str) -> Path:
    path, known = Path(source), presets()
    if path.is_file():
        return path
    if source in known:
        return known[source]
    raise ConfigError(f"{source}: no such file or preset{_hint(path.stem, [*known])} (presets: {', '.join(known)})")


def _hint(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _parse(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {_yaml_problem(error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, got {type(values).__name__}")
    return values


def _yaml_problem(error: Exception) -> str:
    """Return place and reason of a parser's error as one line, with what most often helps."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return one_line(error)
    mark = error.problem_mark
    if isinstance(error, yaml.constructor.ConstructorError):
        return f"line {mark.line + 1}, column {mark.column + 1}: {one_line(error.problem)}"
    fix = "close each bracket and quote, indent with spaces, and quote values with ': ' or a leading '*', '&', '@', '%'"
    return f"line {mark.line + 1}, column {mark.column + 1}: {one_line(error.problem)}. Fix: {fix}"


def _apply(values: dict[str, Any], setting: str) -> None:
    """Write one `key.path=value` into the nested values."""
    key, separator, text = setting.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {setting}: write key.path=value, for example --set train.epochs=5")
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--set {setting}: the value is not YAML: {_yaml_problem(error)}") from error
    if value == text.strip():  # and not in quotes
        value = _number(value)
    *parents, last = key.split(".")
    if parents and parents[0] in ("optimize", "quantize", "overrides"):  # index into a list that the file omits
        values.setdefault(parents[0], PipelineConfig().model_dump(mode="json")[parents[0]])
    node: Any = values
    for name in parents:
        node = _step(node, name, setting)
    if isinstance(node, list):
        node[_index(node, last, setting)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"--set {setting}: '{'.'.join(parents)}' is the value {node!r} and has no keys")


def _number(text: str) -> float | str:
    """Read 1e-12 as a number; YAML 1.1 requires a decimal point in it."""
    try:
        return float(text)
    except ValueError:
        return text


def _step(node: Any, name: str, setting: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, name, setting)]
    if isinstance(node, dict):
        if node.get(name) is None:
            node[name] = {}
        return node[name]
    raise ConfigError(f"--set {setting}: {name!r} is below the value {node!r}, which has no keys")


def _index(node: list[Any], name: str, setting: str) -> int:
    if name.isdecimal() and int(name) < len(node):
        return int(name)
    indices = f"index out of range (0 to {len(node) - 1})" if node else "the list is empty"
    raise ConfigError(f"--set {setting}: {name!r}: {indices}")


def _explain(problem: Any) -> str:
    """Return one of pydantic's errors as key, value, and allowed values."""
    location = [part for part in problem["loc"] if part != "function-after"]
    model, key = _walk(location)
    message = str(problem["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list, such as [a, b]")
    if problem["type"] == "extra_forbidden" and model is not None:
        allowed = [*model.model_fields]
        if gone := removed(f"shipping.{key}"):
            return f"{key}: {gone}"
        return f"{key}: unknown key{_hint(str(location[-1]), allowed)} (allowed: {', '.join(allowed)})"
    if not key:
        return message
    if problem["type"] == "model_type" and model is not None:
        message = f"expected a section with keys (allowed: {', '.join(model.model_fields)})"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        expected = problem["ctx"].get("expected_tags")
        kind = problem["ctx"].get("tag", "missing")
        if not expected:
            return f"{key}.kind: {kind}; a kind is required"
        return "; ".join(filter(None, (f"{key}.kind: {kind} (allowed: {expected})", removed(f"*.{kind}"))))
    value = "" if problem["type"] == "missing" else f" {without_password(SHORT.repr(problem['input']))}:"
    return f"{key}:{value} {message[:1].lower()}{message[1:]}"


def _walk(location: list[str | int]) -> tuple[type[BaseModel] | None, str]:
    """Follow a location through the schema; return the innermost model and the key as in the file.

    Pydantic inserts the tag of a union's member into the location; the file does not contain it, so it is omitted.
    """
    model: type[BaseModel] | None = PipelineConfig
    options: list[type[BaseModel]] = []
    key: list[str] = []
    leaf = False
    for part in location:
        tagged = [o for o in options if part in _kinds(o) and (len(options) > 1 or part not in o.model_fields)]
        if tagged:
            model, options = tagged[0], []
            continue
        if leaf and isinstance(part, str):  # the tag of a union member
            continue
        key.append(str(part))
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        options = models_of(field) if field else []
        leaf = field is not None and not options and typing.get_origin(field.annotation) is not dict
        model = options[0] if len(options) == 1 else model if not options and field is None else None
    return model, ".".join(key)


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the values of a model's field `kind`, which are its tags in a union; none without such a field."""
    return typing.get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
