"""Run a model on samples: arrays of shape (n, ...) by input.

- An array with as many axes as the model's input: its first axis is the batch. Where the model fixes the batch to k,
  each call has k samples; the last call is padded with copies, whose outputs are dropped.
- An array with one axis more: each sample is a whole input (a state, a scalar, a sequence without a batch axis), and
  the model is called once per sample.

Where a model fixes the batch to 1, an output that has not one row is that of the sample as a whole, as a detector's
boxes. Outputs whose length depends on the sample are padded (`gauntlet.core.ragged`).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays, require_range
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.ragged import joined_samples

DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.str_,
    **{f"tensor({sign}int{n})": getattr(np, f"{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)},
}
"""ONNX Runtime's name of a type -> NumPy's type."""
ADD_AXIS = "give every input one axis more: each sample is then a whole input"


@dataclass(frozen=True)
class BatchedInference:
    """The calls of one session for some samples."""

    session: Any
    samples: NamedArrays
    one_sample_per_call: bool
    fixed_batch: int | None

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def batch(self, size: int) -> int:
        """Return the number of samples per call, which the model may fix."""
        return self.fixed_batch or size

    def feed(self, start: int, batch: int) -> NamedArrays:
        """Return the inputs of the call whose first sample is `start`."""
        if self.one_sample_per_call:
            return {name: np.asarray(array[start]) for name, array in self.samples.items()}  # a scalar too
        batch = self.batch(batch)
        part = {name: array[start : start + batch] for name, array in self.samples.items()}
        if self.fixed_batch is None or start + batch <= len(self):
            return part
        indices = np.minimum(np.arange(self.fixed_batch), len(self) - start - 1)
        return {name: array[indices] for name, array in part.items()}

    def run(self, size: int, at_once: int = 1) -> NamedArrays:
        """Run all samples; return the outputs by name, shape (n, ...), strings as NumPy's.

        Makes `at_once` calls in parallel, so the session should have that share of the threads. Raises `StageError`
        when the runtime fails, or an output does not have one entry per sample.
        """
        names, batch = tensor_output_names(self.session), self.batch(size)
        if not names:
            raise StageError("no output is a tensor, so none can be compared. Fix: return one, or ConcatFromSequence")
        starts, call = range(0, len(self), batch), partial(self._call, names, batch)
        if at_once == 1:
            parts = [call(start) for start in starts]
        else:
            with ThreadPoolExecutor(at_once) as pool:
                parts = list(pool.map(call, starts))
        return {name: self.joined(name, [part[i] for part in parts]) for i, name in enumerate(names)}

    def _call(self, names: list[str], batch: int, start: int) -> list[Array]:
        feed = self.feed(start, batch)
        try:
            values = self.session.run(names, feed)
        except StageError:  # a framework's model, which says itself what fails
            raise
        except Exception as error:  # the runtime's own exceptions share no public base
            shapes = {name: np.shape(array) for name, array in feed.items()}
            raise StageError(f"ONNX Runtime fails on inputs of shape {shapes}: {one_line(error)}") from error
        return [
            self._rows(name, value, min(batch, len(self) - start)) for name, value in zip(names, values, strict=True)
        ]

    def _rows(self, name: str, value: Any, kept: int) -> Array:
        rows = self.fixed_batch or kept
        array = np.asarray(value)
        array = array.astype(np.str_) if array.dtype == object else array
        if self.fixed_batch == 1:
            return array
        if array.shape[:1] != (rows,):
            raise StageError(
                f"output '{name}' has shape {array.shape} for {rows} samples, not one entry per sample. Fix: return it "
                f"with the samples as its first axis, or leave it out; if the model has no batch axis, {ADD_AXIS}"
            )
        return array[:kept]

    def joined(self, name: str, parts: list[Array]) -> Array:
        """Return one output for all samples, shape (n, ...), from what each call returned."""
        if self.one_sample_per_call or (self.fixed_batch == 1 and any(part.shape[:1] != (1,) for part in parts)):
            parts = [part[None] for part in parts]
        if len(parts) == 1:  # the runtime gives every call memory of its own
            return parts[0]
        if len({part.ndim for part in parts}) > 1:
            raise StageError(f"output '{name}' changes its number of axes from call to call. Fix: leave it out")
        return joined_samples(parts)


def batched_inference(session: Any, samples: NamedArrays) -> BatchedInference:
    """Return the calls for some samples, converted to the inputs' types; `StageError` when they do not fit."""
    inputs = {i.name: i for i in session.get_inputs()}
    missing = sorted(inputs.keys() - samples.keys())
    if missing:
        raise StageError(f"no samples for the input {missing[0]!r}; there are samples for {sorted(samples)}")
    used = {name: _converted(name, samples[name], i.type) for name, i in inputs.items()}
    extra = {used[name].ndim - len(i.shape) for name, i in inputs.items()}
    if extra <= {0, 1} and len({array.shape[:1] for array in used.values()}) > 1:
        counts = ", ".join(f"{len(array) if array.ndim else 'none'} of '{name}'" for name, array in used.items())
        raise StageError(f"the inputs have unlike numbers of samples: {counts}. Fix: give one row a sample in each")
    if extra == {1}:
        return BatchedInference(session, used, one_sample_per_call=True, fixed_batch=1)
    if extra - {0}:
        ranks = {name: f"{used[name].ndim} axes for an input of {len(i.shape)}" for name, i in inputs.items()}
        raise StageError(
            f"the samples do not fit the model's inputs: {ranks}; give as many axes as the input has, the first one "
            "for the samples, or one more in every array"
        )
    batches = {i.shape[0] for i in inputs.values() if i.shape and isinstance(i.shape[0], int)}
    if len(batches) > 1:
        raise StageError(f"the inputs fix different first axes ({sorted(batches)}), so there is no batch; {ADD_AXIS}")
    return BatchedInference(session, used, one_sample_per_call=False, fixed_batch=next(iter(batches), None))


def tensor_output_names(session: Any) -> list[str]:
    """Return the outputs that are tensors; a sequence of maps (scikit-learn's ZipMap) has no shape to compare."""
    return [output.name for output in session.get_outputs() if output.type.startswith("tensor(")]


def _converted(name: str, array: Array, kind: str) -> Array:
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise StageError(f"input '{name}' is a {kind}, which NumPy has no type for")
    if array.dtype == dtype or (dtype is np.str_ and array.dtype.kind == "U"):
        return array
    if dtype is np.str_ or array.dtype.kind in "US":
        fix = f"give {'texts' if dtype is np.str_ else 'numbers'}"
        raise StageError(f"input '{name}' takes {kind}; the samples are {array.dtype}. Fix: {fix}")
    if not np.can_cast(array.dtype, dtype, "same_kind") and array.dtype.kind not in "iub":
        fix = f"give {'whole numbers as integers, none missing' if np.dtype(dtype).kind in 'iu' else np.dtype(dtype)}"
        loss = f"the samples are {array.dtype}, which would lose information. Fix: {fix}"
        raise StageError(f"input '{name}' takes {kind}; {loss}")
    require_range(name, array, dtype)
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError as error:
        fix = "scale or clip the samples as the model expects them"
        raise StageError(f"input '{name}' takes {kind}; a sample is beyond its range. Fix: {fix}") from error
