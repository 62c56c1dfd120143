"""Run a model with states over sequences of samples, in which it is fed the states that it returned."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.states import States
from gauntlet.datasets.golden import Predict, StateSequence
from gauntlet.datasets.splits import Split

STEPS, SEQUENCES = 32, 16
MAX_PASSES = 2
"""The sequences together have at most so many times the samples of the test split."""


def sequence_positions(samples: int) -> npt.NDArray[np.int64]:
    """Return the samples of a split by step and sequence, shape (steps, sequences), both as many as the split allows.

    A sequence is a run of consecutive samples, and their first ones are evenly spaced.
    """
    steps = max(1, min(STEPS, samples // 2))
    first = np.linspace(0, samples - steps, max(1, min(SEQUENCES, MAX_PASSES * samples // steps))).round()
    return np.unique(first).astype(np.int64) + np.arange(steps)[:, None]


def run_sequence(
    predict: Predict, split: Split, positions: npt.NDArray[np.int64], states: States
) -> Iterator[NamedArrays]:
    """Yield the outputs of each step, shape (sequences, ...).

    The first step takes its states from its samples, every other one from the outputs of the step before.
    """
    own: NamedArrays = {}
    for step in positions:
        outputs = predict(split.take(step) | own)
        own = {name: outputs[output] for name, output in states}
        yield outputs


def record_sequence(predict: Predict, test: Split, states: States) -> StateSequence | None:
    """Return the source's outputs over sequences of test samples, as long as its states are finite.

    None without states, or where no step leaves them finite.
    """
    positions, steps = sequence_positions(len(test)), list[NamedArrays]()
    for outputs in run_sequence(predict, test, positions, states) if states else ():
        if not all(_is_finite(outputs, name) for _, name in states):
            break
        steps.append(outputs)
    return StateSequence(positions[: len(steps)], stacked(steps)) if steps else None


def stacked(steps: list[NamedArrays]) -> NamedArrays:
    """Return the outputs of all steps, shape (steps, sequences, ...)."""
    return {name: np.stack([outputs[name] for outputs in steps]) for name in steps[0]}


def _is_finite(outputs: NamedArrays, name: str) -> bool:
    return outputs[name].dtype.kind != "f" or bool(np.isfinite(outputs[name]).all())
