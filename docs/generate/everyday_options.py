"""The page of everyday options: the fields of the configuration that most users set, with an example each."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from markdown_text import anchor, table
from schema_lists import Schema, SchemaLists, mapping

INTRODUCTION = """\
# Everyday options

These options suit most runs. [The reference](configuration.md) also has those for tuning, and the
same keys of other kinds. Each example is a line of a configuration file.
"""
Example = dict[str, Any]


class Option(NamedTuple):
    """An everyday field of the configuration, or of one kind of a part of it."""

    path: str
    holder: str
    """The name of the class that has the field; empty at the top level."""
    field: Schema
    example: Example


def options(schema: Schema) -> Iterator[Option]:
    """Yield the everyday fields at the top level and one level below, each once, as one of the kinds has it."""
    for part, value in schema["properties"].items():
        if is_everyday(value):
            yield Option(part, "", value, {part: example_of(value)})
        elif "type" not in value and "anyOf" not in value:  # neither a value nor a list of objects
            kinds = {kind: target.rpartition("/")[2] for kind, target in mapping(value).items()}
            usual = value["default"].get("kind")
            kinds = dict(sorted(kinds.items(), key=lambda item: item[0] != usual))
            yield from options_of(schema["$defs"], part, kinds or {"": value["$ref"].rpartition("/")[2]})


def options_of(definitions: dict[str, Schema], part: str, holders: dict[str, str]) -> Iterator[Option]:
    """Yield the everyday fields of a part, whose kinds are of these classes."""
    seen = set()
    for kind, holder in holders.items():
        fields, required = definitions[holder]["properties"], definitions[holder].get("required", ())
        for key, field in fields.items():
            needed = [name for name in fields if name != "kind" and (name == key or name in required)]
            if key in seen or not is_everyday(field) or not all(is_everyday(fields[name]) for name in needed):
                continue
            seen.add(key)
            named = {"kind": kind} if kind else {}
            example = {part: named | {name: example_of(fields[name]) for name in needed}}
            yield Option(f"{part}.{key}", holder, field, example)


def is_everyday(field: Schema) -> bool:
    """Say whether a field is one of the page (`gauntlet.core.frozen`)."""
    return field.get("tier") == "everyday"


def example_of(field: Schema) -> Any:
    """Return the example of a field; in JSON the keys of a mapping are strings, in YAML they may be numbers."""
    [value] = field["examples"]
    return {int(key) if key.isdecimal() else key: one for key, one in value.items()} if type(value) is dict else value


def everyday_options(schema: Schema, lists: SchemaLists) -> str:
    """Return the page."""
    rows = [row(option, lists) for option in options(schema)]
    return INTRODUCTION + "\n" + table(("option", "default", "example", "meaning"), rows) + "\n"


def row(option: Option, lists: SchemaLists) -> tuple[str, ...]:
    """Return one option as a row."""
    default = option.field.get("default")
    example = yaml.safe_dump(option.example, default_flow_style=True, sort_keys=False, width=1000).strip()
    return (
        f"[`{option.path}`]({section(option.holder, lists)})",
        "" if default in (None, [], {}) else f"`{lists.brief(default)}`",
        f"`{example[1:-1]}`",
        option.field["description"],
    )


def section(holder: str, lists: SchemaLists) -> str:
    """Return the address of a class's section in the reference."""
    return f"configuration.md#{anchor(lists.titles[holder] if holder else 'Top level')}"
