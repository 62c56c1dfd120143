"""Run a model with states over sequences of samples, in which it is fed the states that it returned."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import monotonic

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.states import axis_terms
from gauntlet.datasets.golden import Predict, StateSequence
from gauntlet.datasets.splits import Split

STEPS, SEQUENCES = 32, 16
LONG_STEPS, LONG_S = 512, 5.0
"""Steps of two long sequences, in which the samples come in turns; after so many seconds of the source they end."""
MAX_PASSES = 2
"""The sequences together have at most so many times the samples of the test split."""


def sequence_positions(samples: int) -> npt.NDArray[np.int64]:
    """Return the samples of a split by step and sequence, shape (steps, sequences), both as many as the split allows.

    A sequence is a run of consecutive samples, and their first ones are evenly spaced.
    """
    steps = max(1, min(STEPS, samples // 2))
    first = np.linspace(0, samples - steps, max(1, min(SEQUENCES, MAX_PASSES * samples // steps))).round()
    return np.unique(first).astype(np.int64) + np.arange(steps)[:, None]


def long_positions(samples: int) -> npt.NDArray[np.int64]:
    """Return the samples of a split by step of two long sequences, which start at the first one and in the middle."""
    positions: npt.NDArray[np.int64] = (np.arange(LONG_STEPS)[:, None] + np.array([0, samples // 2])) % samples
    return positions


def run_sequence(
    predict: Predict, split: Split, positions: npt.NDArray[np.int64], signature: Signature
) -> Iterator[NamedArrays]:
    """Yield the outputs of each step, shape (sequences, ...), but caches that grow, which later outputs depend on.

    The first step takes its states from its samples, every other one from the outputs of the step before.
    """
    own: NamedArrays = {}
    for step in positions:
        feed = _as_long(split.take(step), own, signature.inputs)
        outputs = predict(feed)
        own = {name: outputs[output] for name, output in signature.states}
        grown = {output for name, output in signature.states if feed[name].shape != own[name].shape}
        yield {name: array for name, array in outputs.items() if name not in grown}


def _as_long(samples: NamedArrays, own: NamedArrays, inputs: Sequence[TensorSpec]) -> NamedArrays:
    """Return the inputs of a step; by the names of its axes, a mask over a cache that grew repeats its last entries."""
    known = [spec for spec in inputs if spec.name in samples]
    axes = {s.name: dict(enumerate(map(str, s.shape), samples[s.name].ndim - len(s.shape))) for s in known}
    lengths = {axis: samples[name].shape[place] for name in axes for place, axis in axes[name].items()}
    grown = {
        axis: array.shape[place]
        for name, array in own.items()
        for place, axis in axes.get(name, {}).items()
        if array.shape[place] != samples[name].shape[place]
    }
    feed, lengths = samples | own, lengths | grown
    for name in axes.keys() - own.keys():
        for place, axis in axes[name].items():
            terms = axis_terms(axis, lengths) or [axis]
            if grown.keys() & set(terms):
                length = sum(lengths[term] if term in lengths else int(term) for term in terms)
                pad = [(0, 0)] * feed[name].ndim
                pad[place] = (0, max(length - feed[name].shape[place], 0))
                feed[name] = np.pad(feed[name], pad, "edge" if feed[name].size else "constant")
    return feed


def record_sequence(predict: Predict, test: Split, signature: Signature, *, long: bool = False) -> StateSequence | None:
    """Return the source's outputs over sequences of test samples, as long as its states are finite and it takes them.

    Long ones also end with their time. None without states, or where no step leaves them finite.
    """
    positions, steps = (long_positions if long else sequence_positions)(len(test)), list[NamedArrays]()
    end = monotonic() + LONG_S
    with suppress(StageError):
        for outputs in run_sequence(predict, test, positions, signature) if signature.states else ():
            states = [outputs[name] for _, name in signature.states if name in outputs]
            if not all(state.dtype.kind != "f" or np.isfinite(state).all() for state in states):
                break
            steps.append(outputs)
            if long and monotonic() > end:
                break
    return StateSequence(positions[: len(steps)], stacked(steps)) if steps else None


def stacked(steps: list[NamedArrays]) -> NamedArrays:
    """Return the outputs of all steps, shape (steps, sequences, ...)."""
    return {name: np.stack([outputs[name] for outputs in steps]) for name in steps[0]}
