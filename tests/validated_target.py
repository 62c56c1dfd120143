"""A model on a target, looked at as a race does before it starts."""

from pathlib import Path

from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.target_validation import Validation, validate_target
from gauntlet.runtime.processor import Processor
from gauntlet.targets import OrtCpu
from gauntlet.targets.base import BaseTarget, Precision


class States(OrtCpu):
    """The CPU provider, with any label."""

    label: Precision = "f32"

    @property
    def declared_precision(self) -> Precision:
        return self.label


def look(
    model: Path,
    target: BaseTarget,
    inputs: Path,
    expected: ExpectedOutputs,
    timeout_s: float = 60,
    processor: Processor | None = None,
) -> Validation:
    return validate_target(model, target, expected, inputs, threads=1, timeout_s=timeout_s, processor=processor)


def failed(truth: Validation) -> list[str]:
    return [check.name for check in truth.checks if check.blocks]
