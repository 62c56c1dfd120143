"""The base class of all stored values: immutable, without unknown fields, and with NaN preserved in JSON."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema

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

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, without validating the new values."""
        return self.model_copy(update=changes)
