"""A model on a target, looked at as a race does before it starts."""

from pathlib import Path

from tasks.benchmark.truth import Expected, Truth, examine
from tasks.targets import OrtCpu
from tasks.targets.base import BaseTarget, Precision


class States(OrtCpu):
    """The CPU provider, with any label."""

    label: Precision = "f32"

    @property
    def stated(self) -> Precision:
        return self.label


def look(model: Path, target: BaseTarget, inputs: Path, expected: Expected, timeout_s: float = 60) -> Truth:
    return examine(model, target, expected, inputs, threads=1, timeout_s=timeout_s)


def failed(truth: Truth) -> list[str]:
    return [check.name for check in truth.checks if check.blocks]
