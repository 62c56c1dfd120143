"""Decide which models race on which targets, and why the others do not."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from gauntlet.benchmarking.contender import RacePlan
from gauntlet.benchmarking.expected_outputs import ExpectedOutputs
from gauntlet.benchmarking.target_validation import TargetValidation, validate_target
from gauntlet.core.errors import StageError
from gauntlet.targets.base import BaseTarget

Status = Literal["measured", "unavailable", "not applicable", "failed"]


@dataclass(frozen=True)
class Examination:
    """Whether a model can be measured on a target, and why not."""

    status: Status
    reason: str = ""
    validation: TargetValidation | None = None


@dataclass(frozen=True)
class TargetExaminer:
    """Validates models on targets before they race there; the first model is the reference."""

    models: Mapping[str, Path]
    inputs: Path
    plan: RacePlan
    expected: Mapping[str, ExpectedOutputs]
    failures: Mapping[str, str]
    """Model name -> why it has no expected outputs."""
    framework_model: Path | None = None
    """The file that the reference was exported from."""

    @classmethod
    def from_models(
        cls, models: Mapping[str, Path], inputs: Path, plan: RacePlan, framework_model: Path | None = None
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

    def examine(self, name: str, target: BaseTarget) -> Examination:
        """Validate a model on a target, unless the target is not available here or does not run it."""
        if reason := target.rejection_reason(self.framework_model):
            return Examination("not applicable", reason)
        if reason := target.unavailable():
            return Examination("unavailable", reason)
        if name in self.failures:
            return Examination("failed", self.failures[name])
        expected = self.expected[name]
        if target.declared_precision == "int8" and not expected.quantized:
            return Examination("not applicable", "the target runs only quantized models")
        if target.model_suffixes and name != next(iter(self.models)):
            reason = "the target runs only the framework's own model, which is the reference"
            return Examination("not applicable", reason)
        path, plan = self.file(name, target), self.plan
        validation = validate_target(
            path, target, expected, self.inputs, threads=plan.threads, timeout_s=plan.timeout_s
        )
        return Examination("failed" if validation.reason else "measured", validation.reason or "", validation)
