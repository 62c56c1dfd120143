"""The source framework's word, saved once: inputs, and what the trained model itself answered for them.

Every later stage compares with this file, so none of them imports a training framework.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.datasets.splits import Split, batches

REAL = "real"
RANDOM = "random"
REAL_SAMPLES = 64
RANDOM_SAMPLES = 32

Predict = Callable[[NamedArrays], NamedArrays]
"""What a source model is, once it is loaded: inputs of one batch in, outputs out, both by tensor name."""


@dataclass(frozen=True)
class GoldenCase:
    """Some inputs and the source's outputs for them, by tensor name, each of shape (n, ...)."""

    inputs: NamedArrays
    outputs: NamedArrays


@dataclass(frozen=True)
class Golden:
    """What the source answered.

    `cases` are compared number by number: `real` samples (the first of the test split), `random` ones, and one case a
    further size that the model takes. `answers` are the outputs for the whole test split, shape (n, ...). `trace`
    holds, for the first real input alone, what each module of the source computed, by the module's path: it tells where
    a broken model leaves the right way.
    """

    cases: dict[str, GoldenCase]
    test_outputs: NamedArrays
    labels: npt.NDArray[np.int64] | None = None
    module_outputs: NamedArrays = field(default_factory=dict)

    @property
    def real(self) -> GoldenCase:
        """The first samples of the test split."""
        return self.cases[REAL]

    def save(self, path: Path) -> None:
        """Write all of it to one `.npz` file."""
        flat = {f"answers//{name}": array for name, array in self.test_outputs.items()}
        flat |= {f"trace//{name}": array for name, array in self.module_outputs.items()}
        for title, case in self.cases.items():
            flat |= {f"inputs/{title}/{name}": array for name, array in case.inputs.items()}
            flat |= {f"outputs/{title}/{name}": array for name, array in case.outputs.items()}
        if self.labels is not None:
            flat["labels"] = self.labels
        np.savez(path, allow_pickle=False, **flat)

    @classmethod
    def load(cls, path: Path) -> "Golden":
        """Read what `save` wrote."""
        groups: dict[str, dict[str, NamedArrays]] = {"inputs": {}, "outputs": {}, "answers": {}, "trace": {}}
        labels = None
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                if key == "labels":
                    labels = file[key]
                    continue
                group, title, name = key.split("/", 2)
                groups[group].setdefault(title, {})[name] = file[key]
        cases = {title: GoldenCase(inputs, groups["outputs"][title]) for title, inputs in groups["inputs"].items()}
        return cls(cases, groups["answers"].get("", {}), labels, groups["trace"].get("", {}))


def record_golden(
    predict: Predict,
    test: Split,
    *,
    seed: int,
    sizes: Mapping[str, NamedArrays] | None = None,
    trace: NamedArrays | None = None,
    values_that_occur: bool = False,
) -> Golden:
    """Let the source answer everything that later stages will want to know.

    Args:
        predict: the source model, in inference mode.
        test: the test split.
        seed: of the random inputs.
        sizes: further inputs of other sizes, by the name of their case.
        trace: see `Golden`.
        values_that_occur: draw the random inputs from the real ones' values, for a model that may not take others.
    """
    real = test.take(slice(0, REAL_SAMPLES))
    asked = {REAL: real, RANDOM: random_like(real, seed, normal=not values_that_occur), **(sizes or {})}
    cases = {title: GoldenCase(inputs, predict(inputs)) for title, inputs in asked.items()}
    return Golden(cases, predict_split(predict, test), test.labels, trace or {})


def predict_split(
    predict: Predict, split: Split, chosen: npt.NDArray[np.int64] | None = None, batch_size: int = 64
) -> NamedArrays:
    """Return the source's outputs for a split, or for chosen samples of it, reading it batch by batch."""
    if chosen is None:
        parts = [predict(inputs) for inputs in batches(split, batch_size)]
    else:
        starts = range(0, len(chosen), batch_size)
        parts = [predict(split.take(chosen[start : start + batch_size])) for start in starts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def random_like(real: NamedArrays, seed: int, *, normal: bool = True) -> NamedArrays:
    """Return random samples of the same shapes: normal numbers for floats, values that occur for all else.

    Normal numbers have the mean and the spread of the real ones: noise on another scale drives a network to outputs,
    and to rounding errors, that it never has. Whole numbers are often indices; one that never occurs may lie outside
    the model's table.
    """
    rng = np.random.default_rng(seed)

    def like(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        shape = (RANDOM_SAMPLES, *array.shape[1:])
        if array.dtype.kind == "f" and normal:
            wide = array.astype(np.float64)
            mean, spread = (wide.mean(), wide.std()) if array.size and np.isfinite(wide).all() else (0.0, 1.0)
            return rng.normal(mean, spread or 1.0, shape).astype(array.dtype)
        return rng.choice(array.ravel(), shape) if array.size else np.zeros(shape, array.dtype)

    return {name: like(array) for name, array in real.items()}


def first_samples(arrays: NamedArrays, count: int) -> NamedArrays:
    """Return the first `count` samples of every array."""
    return {name: array[:count] for name, array in arrays.items()}
