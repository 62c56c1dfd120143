"""Compare a candidate with the FP32 model over sequences in which each is fed the states that it returned itself."""

import math

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, StateSequence
from gauntlet.metrics.error_metrics import centered_sqnr_db
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy

MOST_STEPS = 64
"""Of longer sequences, the noise is not told step by step: each step takes a pass over all of them."""
FIX = "leave the nodes that compute the states in float, or set train.states to the pairs that are states"


class NoiseByStep(Frozen):
    """The noise of one output of floats. That of a step is measured against the signal of the whole sequences."""

    output: str
    sqnr_db: Number = Field(description="of all steps, without the mean over steps and sequences")
    steps_db: tuple[Number, ...] = Field(description="SQNR of each step: where it falls, the state drifts")


class SequenceComparison(Frozen):
    """The outputs of a candidate over sequences against those of the FP32 model, each fed its own states."""

    states: tuple[tuple[str, str], ...]
    steps: int
    sequences: int
    noise: tuple[NoiseByStep, ...]
    all_steps: AccuracyComparison = Field(description="every step of every sequence as a sample")


def compare_sequence(signature: Signature, expected: StateSequence, actual: NamedArrays) -> SequenceComparison:
    """Compare a candidate's outputs, by name and of shape (steps, sequences, ...), with the FP32 model's."""
    all_steps = compare_accuracy(Golden({}, _flat(expected.outputs)), signature, _flat(actual))
    floats = [output.output for output in all_steps.outputs if output.sqnr_db is not None]
    steps, sequences = expected.positions.shape
    return SequenceComparison(
        states=signature.states,
        steps=steps,
        sequences=sequences,
        noise=tuple(_noise(name, actual[name], expected.outputs[name]) for name in floats if steps <= MOST_STEPS),
        all_steps=all_steps,
    )


def sequence_checks(config: AccuracyLimits, facts: SequenceComparison, kind: str = "sequence") -> list[Check]:
    """Return the checks of accuracy over the sequences, with the step at which the noise exceeds its limit.

    The labels belong to the states of the data, so the loss is the one to be expected. Whether the samples prove it is
    said once, of the samples alone.
    """
    pairs = ", ".join(f"{name} -> {output}" for name, output in facts.states)
    length = f"{facts.steps} step{'s' * (facts.steps > 1)}"
    where = f"{facts.sequences} sequences of {length} in which each model is fed its own states ({pairs})"
    checks = []
    for check in accuracy_checks(config, facts.all_steps, FIX):
        name = check.name.removeprefix("accuracy.")
        if name == "unresolved":
            continue
        noise = next((n for n in facts.noise if f"'{n.output}'" in check.detail and check.unit == "dB"), None)
        steps = "" if noise is None else _steps(noise, float(check.limit))
        detail = "; ".join(filter(None, (check.detail, steps, where)))
        checks.append(check.replace(name=f"accuracy.{kind}_{name}", detail=detail))
    return checks


def _steps(noise: NoiseByStep, limit: float) -> str:
    """Return the noise of the first, the middle and the last step, and the first that exceeds the limit."""
    steps = noise.steps_db
    summary = ", ".join(f"step {n} {steps[n - 1]:.1f} dB" for n in sorted({1, (1 + len(steps)) // 2, len(steps)}))
    below = next((number for number, step in enumerate(steps, start=1) if not step >= limit), None)
    return summary if below is None else f"first below the limit at step {below}: {summary}"


def _flat(outputs: NamedArrays) -> NamedArrays:
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in outputs.items()}


def _noise(name: str, actual: Array, expected: Array) -> NoiseByStep:
    def sqnr_db(outputs: Array) -> float:
        return centered_sqnr_db(*(array.reshape(-1, *array.shape[2:]) for array in (outputs, expected)))

    share_db = 10 * math.log10(len(expected))  # a step has so much less of the signal than all have
    by_step = []
    for step in range(len(expected)):
        only = expected.astype(np.result_type(actual, expected))
        only[step] = actual[step]
        by_step.append(sqnr_db(only) - share_db)
    return NoiseByStep(output=name, sqnr_db=sqnr_db(actual), steps_db=tuple(by_step))
