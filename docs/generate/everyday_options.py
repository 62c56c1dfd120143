"""The page of everyday options: the fields of the configuration that most users set, with an example each."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from markdown_text import anchor, table
from schema_tables import Schema, SchemaTables, mapping

INTRODUCTION = """\
# Everyday options

These options suit most runs; [the reference](configuration.md) also has those for tuning. Each example is a line of a
configuration file, which `gauntlet validate FILE` checks; `--set KEY=VALUE` changes one value of a file or preset.
"""
Example = dict[str, Any]


class Option(NamedTuple):
    """An everyday field of the configuration, or of one kind of a part of it."""

    path: str
    holder: str
    """The name of the class that has the field; empty at the top level."""
    field: Schema
    example: Example
    kinds: dict[str, str]
    """All kinds with a field of this name, and the names of their classes; empty for a part without kinds."""


def options(schema: Schema) -> Iterator[Option]:
    """Yield the everyday fields at the top level and one level below, each once, as one of the kinds has it."""
    for part, value in schema["properties"].items():
        if is_everyday(value):
            yield Option(part, "", value, {part: example_of(value)}, {})
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
            kinds = {one: name for one, name in holders.items() if one and key in definitions[name]["properties"]}
            yield Option(f"{part}.{key}", holder, field, example, kinds)


def is_everyday(field: Schema) -> bool:
    """Say whether a field is one of the page (`gauntlet.core.frozen`)."""
    return field.get("tier") == "everyday"


def example_of(field: Schema) -> Any:
    """Return the example of a field; in JSON the keys of a mapping are strings, in YAML they may be numbers."""
    [value] = field["examples"]
    return {int(key) if key.isdecimal() else key: one for key, one in value.items()} if type(value) is dict else value


def everyday_options(schema: Schema, tables: SchemaTables) -> str:
    """Return the page."""
    rows = [row(option, tables) for option in options(schema)]
    return INTRODUCTION + "\n" + table(("option", "default", "example", "meaning"), rows) + "\n"


def row(option: Option, tables: SchemaTables) -> tuple[str, ...]:
    """Return one option as a row."""
    default = option.field.get("default")
    example = yaml.safe_dump(option.example, default_flow_style=True, sort_keys=False, width=1000).strip()
    kinds = ", ".join(f"[{kind}]({section(holder, tables)})" for kind, holder in option.kinds.items())
    return (
        f"[`{option.path}`]({section(option.holder, tables)})",
        "" if default in (None, [], {}) else f"`{tables.brief(default)}`",
        f"`{example[1:-1]}`",
        option.field["description"] + (f" (kinds: {kinds})" if kinds else ""),
    )


def section(holder: str, tables: SchemaTables) -> str:
    """Return the address of a class's section in the reference."""
    return f"configuration.md#{anchor(tables.titles[holder] if holder else 'Top level')}"
