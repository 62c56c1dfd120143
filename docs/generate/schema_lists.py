"""Markdown lists from a JSON Schema: a section for each object, an item for each key.

Items that several objects of a part share, such as the kinds of a target, are in one list at the end of the part.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from markdown_text import anchor, items, sentence, wrapped

Schema = dict[str, Any]

LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {} elements",
    "maxItems": "at most {} elements",
    "minLength": "at least {} characters",
    "pattern": "matches `{}`",
}
PLURALS = {"string": "strings", "integer": "integers", "number": "numbers", "path": "paths"}
NOT_FINITE = {"enum": ["NaN", "Infinity", "-Infinity"]}
SHARED_BY = 3
"""Objects of a part that have the same item, from which on it is a shared one."""


class SchemaLists:
    """Renders a schema; every object below it gets one section, named after the key at which it is first met.

    `defaults`: whether each key has its default and its limits, as in a configuration.
    """

    def __init__(self, schema: Schema, defaults: bool) -> None:
        self.schema = schema
        self.defaults = defaults
        self.definitions: dict[str, Schema] = schema.get("$defs", {})
        self.titles: dict[str, str] = {}
        for key, value in schema["properties"].items():
            self._name(value, key)

    def _name(self, value: Schema, path: str, kind: str = "", outer: Collection[str] = ()) -> None:
        """Give the objects in a value their titles, depth first: `data: digits`, `data.hog`.

        Where the same key of two kinds has different objects, the title of the second names the kinds that have it.
        Those in `outer` get theirs from the value around this one.
        """
        kinds = {target: kind for kind, target in mapping(value).items()}
        own = [*references(value)]
        for reference in own:
            name = reference.rpartition("/")[2]
            if reference in outer or name in self.titles or "properties" not in self.definitions[name]:
                if self.titles.get(name, "").startswith(f"{path} ("):
                    self.titles[name] = f"{self.titles[name][:-1]}, {kind})"
                continue
            title = f"{path}: {kinds[reference]}" if reference in kinds else path
            self.titles[name] = f"{title} ({kind})" if title in self.titles.values() else title
            for key, inner in self.definitions[name]["properties"].items():
                self._name(inner, f"{path}.{key}", kinds.get(reference, kind), own)

    def sections(self, part: str, level: int = 2) -> Iterator[str]:
        """Yield the sections of one key of the schema: its kinds or its keys, then what these contain."""
        value = self.schema["properties"][part]
        own = [name for name, title in self.titles.items() if title.partition(":")[0].partition(".")[0] == part]
        yield f"{'#' * level} {part}"
        kinds = mapping(value)
        if "description" in value and (kinds or "description" not in self.definitions[own[0]]):
            yield wrapped(sentence(value["description"]) + ".")
        if kinds:
            links = ", ".join(self._link(reference, kind) for kind, reference in kinds.items())
            yield wrapped(f"{'A list; kinds' if 'array' in types(value) else 'Kinds'}: {links}.")
        shared = self.shared(own)
        heading = f"{part}: shared keys"
        for name in own:
            title = self.titles[name]
            if title != part:
                yield f"{'#' * (level + 1)} {title}"
            yield from self.body(name, shared, heading)
        if shared:
            yield f"{'#' * (level + 1)} {heading}"
            yield items(shared)

    def shared(self, names: list[str]) -> list[str]:
        """Return the items that several objects have."""
        count = Counter(self.item(self.definitions[name], key) for name in names for key in self.keys(name))
        return [item for item, holders in count.items() if holders >= SHARED_BY]

    def keys(self, name: str) -> list[str]:
        """Return the keys of an object that the page shows."""
        fields = self.definitions[name]["properties"]
        return [key for key, value in fields.items() if key != "kind" and not is_internal(value)]

    def body(self, name: str, shared: list[str], heading: str) -> Iterator[str]:
        """Yield an object's summary and the list of its keys; the shared ones by their names alone."""
        definition = self.definitions[name]
        if "description" in definition:
            yield wrapped(definition["description"].partition("\n\n")[0])
        found = {key: self.item(definition, key) for key in self.keys(name)}
        common = ", ".join(f"`{key}`" for key, item in found.items() if item in shared)
        own = [item for item in found.values() if item not in shared]
        if found:
            yield items([*own, *([f"[shared](#{anchor(heading)}): {common}"] if common else [])])

    def item(self, definition: Schema, key: str) -> str:
        """Return a key as an item: with its default, its type, its limits, and what it means."""
        value = definition["properties"][key]
        default = self.brief(value["default"]) if "default" in value else ""
        kind = self.type_of(value)
        if default == "null":
            kind = kind.removesuffix(", null").removesuffix(" or null")
        named = f"{key}: {default}" if default and self.defaults else key
        required = self.defaults and not default and key in definition.get("required", ())
        details = [] if self.defaults and default in ("true", "false") else [kind]
        details += [*limits(value), *(["required"] if required else [])] if self.defaults else []
        meaning = value.get("description", "")
        return f"`{named}`" + (f" ({', '.join(details)})" if details else "") + (f": {meaning}" if meaning else "")

    def type_of(self, value: Schema) -> str:
        """Return a type in words, with a link to each object's section."""
        if "$ref" in value:
            return self._link(value["$ref"])
        for choice in ("anyOf", "oneOf"):
            if choice in value:
                kinds = {
                    reference: kind for kind, reference in value.get("discriminator", {}).get("mapping", {}).items()
                }
                choices = [one for one in value[choice] if one != NOT_FINITE]
                found = [self._link(v["$ref"], kinds[v["$ref"]]) if kinds else self.type_of(v) for v in choices]
                return " or ".join(found) if len(found) < 3 else "one of " + ", ".join(found)
        if "const" in value or "enum" in value:
            return ", ".join(f"`{json.dumps(one).strip(chr(34))}`" for one in value.get("enum", [value.get("const")]))
        if value.get("type") == "array":
            inner = value.get("prefixItems", [value.get("items", {})])[0]
            kind = self.type_of(inner)
            return f"{'pair' if 'prefixItems' in value else 'list'} of {PLURALS.get(kind, kind)}"
        if value.get("type") == "object":
            inner = value.get("additionalProperties")
            kind = self.type_of(inner) if isinstance(inner, dict) else ""
            return f"mapping to {PLURALS.get(kind, kind)}" if kind else "mapping"
        return "path" if value.get("format") == "path" else str(value.get("type", "any value"))

    def brief(self, value: Any) -> str:
        """Return a default as YAML would show it, without what is itself a default."""
        if isinstance(value, list):
            return f"[{', '.join(map(self.brief, value))}]"
        if isinstance(value, dict):
            shown = {key: one for key, one in value.items() if key == "kind" or not self._is_default(value, key)}
            return "{" + ", ".join(f"{key}: {self.brief(one)}" for key, one in shown.items()) + "}"
        return value if isinstance(value, str) and value else json.dumps(value)

    def _is_default(self, value: dict[str, Any], key: str) -> bool:
        """Say whether some object with these keys, and with this kind, has this value as its default."""
        for definition in self.definitions.values():
            known = definition.get("properties", {})
            if set(known) == set(value) and known.get("kind", {}).get("const") == value.get("kind"):
                return bool(known[key].get("default") == value[key])
        return False

    def _link(self, reference: str, text: str = "") -> str:
        name = reference.rpartition("/")[2]
        title = self.titles.get(name)
        return f"[{text or title}](#{anchor(title)})" if title else "any value"


def is_internal(value: Schema) -> bool:
    """Say whether a field is in no page (`gauntlet.core.frozen`)."""
    return value.get("tier") == "internal"


def mapping(value: Schema) -> dict[str, str]:
    """Return the kinds that a value may have, and where each is defined."""
    found: dict[str, str] = {}
    for inner in (value, value.get("items", {}), *value.get("anyOf", ())):
        found |= inner.get("discriminator", {}).get("mapping", {})
        if inner is not value and "items" in inner:
            found |= mapping(inner)
    return found


def references(value: Any) -> Iterator[str]:
    """Yield all references in a value, in their order."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for key, inner in value.items():
            if key not in ("discriminator", "default"):
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def types(value: Schema) -> set[str]:
    """Return the JSON types that a value may have."""
    return {str(one.get("type")) for one in (value, *value.get("anyOf", ()))}


def limits(value: Schema) -> Iterator[str]:
    """Yield the limits on a value, and those on the elements of a list."""
    for one in (value, *value.get("anyOf", ())):
        pair = one.get("prefixItems", [])  # its length is fixed
        found = (text.format(one[key]) for key, text in LIMITS.items() if key in one and not pair)
        yield from ("not empty" if limit.startswith("at least 1 ") else limit for limit in found)
        for inner in pair[:1] or ([one["items"]] if "items" in one else []):
            yield from (f"each {limit.removeprefix('each ')}" for limit in limits(inner))
