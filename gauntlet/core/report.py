"""The result of a stage: facts, and the checks that decide whether the next stage may start."""

import operator
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import Field, computed_field, model_validator

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen, Number

FactsT = TypeVar("FactsT", bound=Facts)

Severity = Literal["error", "warning"]
OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}


class Check(Frozen):
    """One condition on one number. A check on a configured limit has the name of its configuration key."""

    name: str = Field(description="stage.metric; also the configuration key, where the limit is configured")
    value: Number | None = Field(description="the measured value; a missing one does not pass")
    op: Literal["<=", ">=", "<", ">", "=="]
    limit: Number
    unit: str = ""
    severity: Severity = "error"
    detail: str = Field("", description="the evidence: which tensor, which sample, which class")
    remedy: str = Field("", description="how to fix it")
    override: str | None = Field(None, description="why a person overrode this failing check")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        """Whether the condition holds; NaN and a missing value never pass."""
        return self.value is not None and bool(OPERATORS[self.op](self.value, self.limit))

    @model_validator(mode="before")
    @classmethod
    def _derive_passed(cls, data: Any) -> Any:
        # `passed` is written for readers of the JSON and computed again when it is read back.
        return {k: v for k, v in data.items() if k != "passed"} if isinstance(data, dict) else data

    @classmethod
    def of(
        cls,
        name: str,
        value: float | None,
        op: Literal["<=", ">=", "<", ">", "=="],
        limit: float,
        detail: str = "",
        remedy: str = "",
        *,
        unit: str = "",
        severity: Severity = "error",
    ) -> Self:
        """Return a check, written in the order of its condition: `Check.of("stage.metric", value, ">=", limit)`.

        One that passes keeps no `remedy`.
        """
        check = cls(name=name, value=value, op=op, limit=limit, detail=detail, unit=unit, severity=severity)
        return check if check.passed else check.replace(remedy=remedy)

    @property
    def blocks(self) -> bool:
        """Whether this check fails its gate."""
        return not self.passed and self.severity == "error" and self.override is None

    @property
    def unit_text(self) -> str:
        """The unit as it follows a number: ` dB`, but `x` for a ratio."""
        return f" {self.unit}" if self.unit and self.unit != "x" else self.unit

    @property
    def says_whether(self) -> bool:
        """Whether it failed on a yes or no, which its detail explains, and on no number."""
        return bool(self.detail) and not self.unit and self.op == "==" and {self.value, self.limit} == {0, 1}

    def explained(self, detail: str, remedy: str) -> Self:
        """Return the check with this detail and remedy if it failed; unchanged if it passed."""
        return self if self.passed else self.replace(detail=detail, remedy=remedy)

    def __str__(self) -> str:
        fix = f". Fix: {self.remedy}" if self.remedy else ""
        if self.says_whether:
            return f"{self.name}: {self.detail}{fix}"
        value = "missing" if self.value is None else f"{self.value:.6g}"
        unit = self.unit_text
        detail = f"; {self.detail}" if self.detail else ""
        return f"{self.name}: {value}{unit} must be {self.op} {self.limit:.6g}{unit}{detail}{fix}"


class Report(Frozen, Generic[FactsT]):
    """The result of a stage. The caller that ran it sets `stage`, `candidate`, `seconds` and the like."""

    stage: str = Field("", description="name of the function")
    facts: FactsT
    checks: tuple[Check, ...] = ()
    artifacts: dict[str, Artifact] = Field(default_factory=dict)
    candidate: str | None = None
    cached: bool = False
    timed: bool = Field(False, description="a clock decided something: the same work may end differently")
    unkeyed: bool = Field(False, description="it read what the cache key does not hold, such as a user function's data")
    seconds: Number = 0.0
    peak_rss_bytes: int = 0

    @property
    def reusable(self) -> bool:
        """Whether the same work would end the same, so that this result may stand for it."""
        return not (self.timed or self.unkeyed)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that fail the gate."""
        return tuple(check for check in self.checks if check.blocks)

    def raise_if_blocked(self) -> None:
        """Raise `GateFailed` when a check fails the gate."""
        if self.failures:
            raise GateFailed("\n".join(str(check) for check in self.failures))
