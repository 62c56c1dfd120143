"""Decide which models race on which targets, and why the others do not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.contender import Contender, Plan
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.target_validation import Validation, validate_target
from gauntlet.targets.base import BaseTarget

Status = Literal["measured", "unavailable", "not applicable", "failed"]


class ModelOnTarget(Frozen):
    """One model on one target: whether it can be measured there, and what was measured."""

    candidate: str
    target: str
    status: Status
    reason: str = Field("", description="why it was not measured, or the batch sizes at which it failed and why")
    validation: Validation | None = None
    rows: tuple[BenchmarkRow, ...] = Field((), description="against the reference; none for a deployment target")
    aa_deviation: Number | None = Field(None, description="of the reference of its rows, as in `BenchmarkFacts`")
    load_ms: Number = math.nan
    first_call_ms: Number = math.nan
    peak_rss_bytes: int = 0
    round_medians_ms: dict[int, tuple[Number, ...]] = Field(default_factory=dict, description="by batch size")

    @property
    def name(self) -> str:
        """The model and its target in words."""
        return f"{self.candidate} on {self.target}"

    @property
    def is_absent(self) -> bool:
        """Whether the target cannot run the model here."""
        return self.status in ("unavailable", "not applicable")

    @property
    def check(self) -> Check | None:
        """The first failed check, as a warning: the model loses only its rows on this target."""
        failed = [check for check in self.validation.checks if check.blocks] if self.validation else []
        if not failed:
            return None
        return failed[0].replace(severity="warning", detail=f"{self.name}: {failed[0].detail}")

    def validated(self, validation: Validation) -> Self:
        """Return it with its validation, and what follows from it."""
        reason = validation.reason
        return self.replace(status="failed" if reason else "measured", reason=reason or "", validation=validation)

    def raced(self, contender: Contender, rows: tuple[BenchmarkRow, ...], failure: str | None) -> Self:
        """Return it with what a race measured; it has failed where the race has no rows of it."""
        if not rows:
            return self.replace(status="failed", reason=failure or "")
        return self.replace(
            reason=failure or "",
            rows=rows,
            load_ms=contender.load_ms,
            first_call_ms=contender.first_call_ms,
            peak_rss_bytes=contender.peak_rss_bytes,
            round_medians_ms={batch: tuple(contender.round_medians_ms[batch]) for batch in contender.batches},
        )


@dataclass(frozen=True)
class TargetExaminer:
    """Validates models on targets before they race there; the first model is the reference."""

    models: Mapping[str, Path]
    inputs: Path
    plan: Plan
    expected: Mapping[str, ExpectedOutputs]
    failures: Mapping[str, str]
    """Model name -> why it has no expected outputs."""
    framework_model: Path | None = None
    """The file that the reference was exported from."""

    @classmethod
    def from_models(
        cls, models: Mapping[str, Path], inputs: Path, plan: Plan, framework_model: Path | None = None
    ) -> Self:
        """Compute the expected outputs of each model.

        Raises:
            StageError: when the reference cannot be run.
        """
        expected: dict[str, ExpectedOutputs] = {}
        failures: dict[str, str] = {}
        for name, path in models.items():
            try:
                reference = next(iter(expected.values()), None)
                expected[name] = ExpectedOutputs.of(path, inputs, plan.timeout_s, reference)
            except StageError as error:
                if not expected:
                    raise
                failures[name] = str(error)
        return cls(models, inputs, plan, expected, failures, framework_model)

    def file(self, name: str, target: BaseTarget) -> Path:
        """Return the file of a model that a target runs."""
        return self.framework_model if target.model_suffixes and self.framework_model else self.models[name]

    def examine(self, name: str, target: BaseTarget) -> ModelOnTarget:
        """Validate a model on a target, unless the target is not available here or does not run it."""
        pair = ModelOnTarget(candidate=name, target=target.name, status="failed")
        if reason := target.rejection_reason(self.framework_model):
            return pair.replace(status="not applicable", reason=reason)
        if reason := target.unavailable():
            return pair.replace(status="unavailable", reason=reason)
        if name in self.failures:
            return pair.replace(reason=self.failures[name])
        expected = self.expected[name]
        if target.declared_precision == "int8" and not expected.quantized:
            return pair.replace(status="not applicable", reason="the target runs only quantized models")
        if target.model_suffixes and name != next(iter(self.models)):
            reason = "the target runs only the framework's own model, which is the reference"
            return pair.replace(status="not applicable", reason=reason)
        path, plan = self.file(name, target), self.plan
        how: dict[str, Any] = {"threads": plan.threads, "timeout_s": plan.timeout_s, "batch_sizes": plan.batch_sizes}
        return pair.validated(validate_target(path, target, expected, self.inputs, **how))
