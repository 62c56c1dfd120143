"""The one base of every value that travels: immutable, strict about its fields, and able to write NaN down."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, JsonValue, WithJsonSchema

Number = Annotated[
    float,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}),
]
"""A float whose JSON form keeps NaN and the infinities, as strings: a report breaks exactly when it matters."""

JsonObject = dict[str, JsonValue]


class Frozen(BaseModel):
    """An immutable pydantic model that refuses unknown fields and round-trips NaN through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed (the values are trusted, as those of `model_copy`)."""
        return self.model_copy(update=changes)
