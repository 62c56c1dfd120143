"""Reference outputs of the source model, saved once, so that no later stage imports a training framework."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays, read_arrays
from gauntlet.core.errors import StageError
from gauntlet.core.ragged import joined
from gauntlet.datasets.splits import Split

REAL = "real"
RANDOM = "random"
REAL_SAMPLES = 64
RANDOM_SAMPLES = 32
SPACES = ("\u00e9 ", "e\u0301 ", "\u00a0\u200b", "\u65e5 \u00c9")
"""In the place of a space: after a composed accent and another; of other widths; among letters of two scripts."""

Predict = Callable[[NamedArrays], NamedArrays]
"""A source model in inference mode: inputs of one batch -> outputs, both by tensor name."""


@dataclass(frozen=True)
class GoldenCase:
    """Some inputs and the source's outputs for them, by tensor name, each of shape (n, ...)."""

    inputs: NamedArrays
    outputs: NamedArrays


@dataclass(frozen=True)
class StateSequence:
    """The source's outputs over sequences in which it feeds itself; see `gauntlet.datasets.state_sequence`.

    `positions` are the samples of the test split by step and sequence, shape (steps, sequences). `outputs`, by tensor
    name, have shape (steps, sequences, ...).
    """

    positions: npt.NDArray[np.int64]
    outputs: NamedArrays


@dataclass(frozen=True)
class Golden:
    """The source model's outputs.

    `cases` are compared value by value: `real` samples (the first of the test split), `random` ones, and one case per
    additional input size. `test_outputs` are the outputs for the whole test split, shape (n, ...). `module_outputs`
    holds, for the first real sample alone, the output of each module of the source by the module's path: it shows where
    a broken model first diverges. `sequence` and `long_sequence` are those of a model with states.
    """

    cases: dict[str, GoldenCase]
    test_outputs: NamedArrays
    labels: Array | None = None
    module_outputs: NamedArrays = field(default_factory=dict)
    sequence: StateSequence | None = None
    long_sequence: StateSequence | None = None

    @property
    def real(self) -> GoldenCase:
        """The first samples of the test split."""
        return self.cases[REAL]

    def save(self, path: Path) -> None:
        """Write everything to one `.npz` file."""
        flat = {f"answers//{name}": array for name, array in self.test_outputs.items()}
        flat |= {f"trace//{name}": array for name, array in self.module_outputs.items()}
        for title, case in self.cases.items():
            flat |= {f"inputs/{title}/{name}": array for name, array in case.inputs.items()}
            flat |= {f"outputs/{title}/{name}": array for name, array in case.outputs.items()}
        if self.labels is not None:
            flat["labels"] = self.labels
        for title, sequence in (("", self.sequence), ("long", self.long_sequence)):
            if sequence is not None:
                flat[f"positions/{title}/"] = sequence.positions
                flat |= {f"sequence/{title}/{name}": array for name, array in sequence.outputs.items()}
        np.savez(path, allow_pickle=False, **flat)

    @classmethod
    def load(cls, path: Path) -> "Golden":
        """Read what `save` wrote."""
        names = ("inputs", "outputs", "answers", "trace", "positions", "sequence")
        groups: dict[str, dict[str, NamedArrays]] = {name: {} for name in names}
        arrays: dict[str, Any] = read_arrays(path)
        labels = arrays.pop("labels", None)
        for key, array in arrays.items():
            group, title, name = key.split("/", 2)
            groups[group].setdefault(title, {})[name] = array
        cases = {title: GoldenCase(inputs, groups["outputs"][title]) for title, inputs in groups["inputs"].items()}
        positions = {title: each[""].astype(np.int64) for title, each in groups["positions"].items()}
        fed = {title: StateSequence(each, groups["sequence"].get(title, {})) for title, each in positions.items()}
        answers, trace = (groups[name].get("", {}) for name in ("answers", "trace"))
        return cls(cases, answers, labels, trace, fed.get(""), fed.get("long"))


def record_golden(
    predict: Predict,
    test: Split,
    *,
    sizes: Mapping[str, NamedArrays] | None = None,
    module_outputs: NamedArrays | None = None,
    observed_values_only: bool = False,
) -> Golden:
    """Record the outputs of the source model for everything that later stages compare; see `golden_cases`."""
    cases = golden_cases(predict, test, sizes=sizes, observed_values_only=observed_values_only)
    return Golden(cases, predict_split(predict, test), test.labels, module_outputs or {})


def golden_cases(
    predict: Predict, test: Split, *, sizes: Mapping[str, NamedArrays] | None = None, observed_values_only: bool = False
) -> dict[str, GoldenCase]:
    """Return the outputs of the source model for some real and some random inputs.

    `sizes` are inputs of other sizes, by the name of their case. With `observed_values_only`, the random inputs are
    drawn from the real ones' values, for a model that may not take others. Texts that mostly differ, unlike
    categories, have letters of other scripts, where the source takes them.
    """
    real = test.take(slice(0, REAL_SAMPLES))
    random = random_like(real, normal=not observed_values_only)
    strings = [name for name, array in real.items() if array.dtype.kind == "U"]
    texts = {name: in_other_scripts(random[name]) for name in strings if 2 * len({*real[name].flat}) > len(real[name])}
    if texts:
        with suppress(StageError):
            predict(random | texts)
            random |= texts
    inputs_by_case = {REAL: real, RANDOM: random, **(sizes or {})}
    return {title: GoldenCase(inputs, predict(inputs)) for title, inputs in inputs_by_case.items()}


def in_other_scripts(texts: Array) -> Array:
    """Return texts with other spaces and letters between their words; one of one word stays as it is."""
    changed = [text.replace(" ", SPACES[i % len(SPACES)]) for i, text in enumerate(texts.ravel().tolist())]
    return np.array(changed, np.str_).reshape(texts.shape)


def predict_split(
    predict: Predict, split: Split, chosen: npt.NDArray[np.int64] | None = None, batch_size: int = 64
) -> NamedArrays:
    """Return the source's outputs for a split, or for chosen samples of it, read batch by batch."""
    indices = np.arange(len(split)) if chosen is None else chosen
    starts = range(0, len(indices), batch_size)
    parts = [predict(split.take(indices[start : start + batch_size])) for start in starts]
    return joined(parts)


def random_like(real: NamedArrays, seed: int = 0, *, normal: bool = True) -> NamedArrays:
    """Return random samples of the same shapes: normal values for floats, observed values for all other types.

    Normal values have the mean and the standard deviation of the real ones: noise on another scale drives a network to
    outputs and rounding errors that it never has in use. Observed values are drawn from the same feature of other
    samples: integers are often indices, and each column may have its own table.
    """
    rng = np.random.default_rng(seed)

    def like(array: Array) -> Array:
        shape = (RANDOM_SAMPLES, *array.shape[1:])
        if array.dtype.kind == "f" and normal:
            wide = array.astype(np.float64)
            mean, std = (wide.mean(), wide.std()) if array.size and np.isfinite(wide).all() else (0.0, 1.0)
            return rng.normal(mean, std or 1.0, shape).astype(array.dtype)
        if not array.size:
            return np.zeros(shape, array.dtype)
        return np.take_along_axis(array, rng.integers(0, len(array), shape), axis=0)

    return {name: like(array) for name, array in real.items()}


def first_samples(arrays: NamedArrays, count: int) -> NamedArrays:
    """Return the first `count` samples of every array."""
    return {name: array[:count] for name, array in arrays.items()}


def samples_in_turns(arrays: NamedArrays, count: int) -> NamedArrays:
    """Return so many samples of every array: the first, or all of them again and again."""
    return {name: array[np.arange(count) % len(array)] for name, array in arrays.items()}
