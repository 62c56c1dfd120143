"""The base class of all stored values: immutable, without unknown fields, and with NaN preserved in JSON."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Number = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})]
"""A float whose JSON form keeps NaN and the infinities, as strings."""

JsonObject = dict[str, JsonValue]


def _whole(share: float) -> float:
    if abs(100 * share - round(100 * share)) > 1e-9:
        raise ValueError(f"write a whole percent, for example {max(0.01, round(share, 2))}")
    return share


Percent = Annotated[float, Field(ge=0.01, le=0.99), AfterValidator(_whole)]
"""A share in whole percents: 0.25 names the candidate `pruned-25`."""


class Frozen(BaseModel):
    """An immutable pydantic model that rejects unknown fields and round-trips NaN through JSON."""

    everyday: ClassVar[JsonObject] = {}
    """Fields that most users set, with an example of each; they have a page of their own. All others are for tuning."""
    internal: ClassVar[tuple[str, ...]] = ()
    """Fields for tests, benchmarks and the product itself; they are in no page, only in the JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, without validating the new values."""
        return self.model_copy(update=changes)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the tiers of the fields, also of inherited ones."""
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        fields = handler.resolve_ref_schema(schema)["properties"] if cls.model_fields else {}
        for base in cls.__mro__:
            for name, example in vars(base).get("everyday", {}).items():
                fields[name] |= {"tier": "everyday", "examples": [example]}
            for name in vars(base).get("internal", ()):
                fields[name] |= {"tier": "internal"}
        return schema


class Kind(Frozen):
    """A kind of a part of the configuration."""

    kind: str

    packages: ClassVar[dict[str, str]] = {}
    """Required package -> the extra that installs it."""

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return ()


def wrong_key(error: Exception) -> str:
    """Return in brackets the first key that pydantic refuses, and why; nothing for other errors."""
    errors = error.errors() if isinstance(error, ValidationError) else []
    places = (f" ({'.'.join(map(str, each['loc']))}: {each['msg']})" for each in errors if each["loc"])
    return next(places, "")
