"""A model as a user has it, with its samples, and the framework's own outputs for rows that no run sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from gauntlet.core.arrays import Array, NamedArrays

SAMPLES, UNSEEN = 90, 20
MISSING = ("--set", "overrides=[{check: data.non_finite_values, reason: NaN is a missing value}]")
"""Words for a model that takes NaN, as the refusal of them says."""
AMPLIFIED = "which is rounding"
"""Why random weights may be refused: rounding decides which regions stay, or grows from layer to layer."""
Outputs = Callable[[NamedArrays], Sequence[Any]]


@dataclass(frozen=True)
class ZooModel:
    """A model as a user has it.

    Args:
        source: what `gauntlet run` is given.
        seen: the samples in its `.npz` file, by input, and perhaps `labels`.
        unseen: further samples by input.
        expected: the framework's outputs for those, in the order of the ONNX file's.
        words: further words of the command line.
        refusal: part of the reason for which it is refused; empty if it is not.
        says: what the run must say of its samples; empty for nothing.
        task: the problem that it must be judged by; empty for any.
    """

    source: Path
    seen: NamedArrays
    unseen: NamedArrays
    expected: list[Array]
    words: tuple[str, ...] = ()
    refusal: str = ""
    says: str = ""
    task: str = ""


def with_samples(
    source: Path,
    draw: Callable[[int], NamedArrays],
    outputs: Outputs,
    labels: Array | None = None,
    words: tuple[str, ...] = ("--trust",),
) -> ZooModel:
    """Draw the samples; `labels` are those of the first ones."""
    every = draw(SAMPLES + UNSEEN)
    seen = {name: array[:SAMPLES] for name, array in every.items()}
    unseen = {name: array[SAMPLES:] for name, array in every.items()}
    seen |= {} if labels is None else {"labels": labels[:SAMPLES]}
    return ZooModel(source, seen, unseen, [np.asarray(output) for output in outputs(unseen)], words)


def floats(*shape: int, name: str = "x") -> Callable[[int], NamedArrays]:
    """Return a function of a number of samples of this shape."""
    return lambda count: {name: np.random.default_rng(1).standard_normal((count, *shape)).astype(np.float32)}


def iris() -> tuple[Array, Array]:
    """Return the flowers in a random order, and their species."""
    from sklearn.datasets import load_iris

    inputs, truth = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(truth))
    return inputs[order].astype(np.float32), truth[order]


def diabetes() -> tuple[Array, Array]:
    """Return the patients, and a whole number as a float for each."""
    from sklearn.datasets import load_diabetes

    inputs, truth = load_diabetes(return_X_y=True)
    return inputs.astype(np.float32), truth


def with_gaps() -> tuple[Array, Array]:
    """Return iris, of which a tenth is missing."""
    inputs, truth = iris()
    return np.where(np.random.default_rng(2).random(inputs.shape) < 0.1, np.float32(np.nan), inputs), truth


def has_gaps(array: Array) -> bool:
    """Return whether values are missing."""
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def run_file(file: Path, samples: NamedArrays) -> list[Array]:
    """Return an ONNX file's outputs, one by one where its batch is 1, or it has none.

    The values of maps are in the order of their keys.
    """
    session = ort.InferenceSession(file)
    numpy_types = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
    types = {value.name: numpy_types.get(value.type) for value in session.get_inputs()}
    names = types if len(types) == 1 else samples  # the run names an only input
    feed = {n: a.astype(types[n] or a.dtype) for n, a in zip(names, samples.values(), strict=True)}
    shape, first = session.get_inputs()[0].shape, next(iter(feed.values()))
    parts: list[Any] = [slice(i, i + 1) for i in range(len(first))] if shape[:1] == [1] else [slice(None)]
    parts = [*range(len(first))] if len(shape) == first.ndim - 1 else parts  # a sample is a whole input
    calls = [session.run(None, {name: array[part] for name, array in feed.items()}) for part in parts]
    return [_array([row for rows in group for row in rows]) for group in zip(*calls, strict=True)]


def _array(rows: list[Any]) -> Array:
    return np.array([[row[key] for key in sorted(row)] if isinstance(row, dict) else row for row in rows])
