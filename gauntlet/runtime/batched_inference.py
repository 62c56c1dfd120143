"""How samples become calls of one model.

Samples are arrays of shape (n, ...), one an input. Two rules cover every model:

- An array with as many axes as the model's input has: its first axis is the input's batch. Where the model fixes the
  batch to k, every call has k samples; the last one is filled up with copies, whose answers are thrown away.
- An array with one axis more: each sample is a whole input (a state, a scalar, a sequence without a batch axis). The
  model is then called once a sample.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError

DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.str_,
    **{f"tensor(int{n})": getattr(np, f"int{n}") for n in (8, 16, 32, 64)},
    **{f"tensor(uint{n})": getattr(np, f"uint{n}") for n in (8, 16, 32, 64)},
}
"""What ONNX Runtime calls a type, and what numpy does."""


@dataclass(frozen=True)
class BatchedInference:
    """The calls that some samples make of one session."""

    session: Any
    samples: NamedArrays
    one_sample_per_call: bool
    fixed_batch: int | None

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def batch(self, wanted: int) -> int:
        """Return how many samples a call takes when `wanted` are asked for."""
        return self.fixed_batch or wanted

    def feed(self, start: int, batch: int) -> NamedArrays:
        """Return the inputs of the call whose first sample is `start`."""
        if self.one_sample_per_call:
            return {name: np.asarray(array[start]) for name, array in self.samples.items()}  # a scalar too
        part = {name: array[start : start + batch] for name, array in self.samples.items()}
        if self.fixed_batch is None:
            return part
        indices = np.minimum(np.arange(self.fixed_batch), len(self) - start - 1)
        return {name: array[indices] for name, array in part.items()}

    def run(self, wanted: int, at_once: int = 1) -> NamedArrays:
        """Run all samples; outputs by name, shape (n, ...), strings as numpy's.

        Args:
            wanted: samples a call, where the model does not fix them.
            at_once: calls side by side; the session's threads should then be a share of those there are.

        Raises:
            StageError: when the runtime fails, or an output is no array with one entry a sample.
        """
        names, batch = tensor_output_names(self.session), self.batch(wanted)
        starts = range(0, len(self), batch)
        if at_once == 1:
            parts = [self._call(names, start, batch) for start in starts]
        else:
            with ThreadPoolExecutor(at_once) as pool:
                parts = list(pool.map(lambda start: self._call(names, start, batch), starts))
        return {name: _joined(name, [part[i] for part in parts]) for i, name in enumerate(names)}

    def _call(self, names: list[str], start: int, batch: int) -> list[npt.NDArray[np.generic]]:
        feed = self.feed(start, batch)
        try:
            values = self.session.run(names, feed)
        except Exception as error:  # the runtime's own exceptions share no public base
            shapes = {name: np.shape(array) for name, array in feed.items()}
            raise StageError(f"ONNX Runtime fails on inputs of shape {shapes}: {error}") from error
        rows = 1 if self.one_sample_per_call else batch if self.fixed_batch else min(batch, len(self) - start)
        kept = min(rows, len(self) - start)
        return [self._rows(name, value, rows, kept) for name, value in zip(names, values, strict=True)]

    def _rows(self, name: str, value: Any, rows: int, kept: int) -> npt.NDArray[np.generic]:
        array = np.asarray(value)
        array = array.astype(np.str_) if array.dtype == object else array
        if self.one_sample_per_call:
            return array[None]
        if array.shape[:1] != (rows,):
            raise StageError(
                f"output '{name}' has shape {array.shape} for {rows} samples, not one entry a sample; where the model "
                "has no batch axis, give every input one axis more: each sample is then a whole input"
            )
        return array[:kept]


def batched_inference(session: Any, samples: NamedArrays) -> BatchedInference:
    """Return the calls that the samples make, each array in the type that the model's input has.

    Raises:
        StageError: when an input has no samples, or samples of another rank, shape or type than it takes.
    """
    inputs = {i.name: i for i in session.get_inputs()}
    lacking = sorted(inputs.keys() - samples.keys())
    if lacking:
        raise StageError(f"no samples for the input {lacking[0]!r}; there are some for {sorted(samples)}")
    used = {name: _typed(name, samples[name], i.type) for name, i in inputs.items()}
    extra = {name: used[name].ndim - len(i.shape) for name, i in inputs.items()}
    if not set(extra.values()) <= {0} and not set(extra.values()) <= {1}:
        ranks = {name: f"{used[name].ndim} axes for an input of {len(i.shape)}" for name, i in inputs.items()}
        raise StageError(
            f"the samples do not fit the model's inputs: {ranks}; give as many axes as the input has, the first "
            "one for the samples, or in every array one more"
        )
    whole = set(extra.values()) == {1}
    firsts = {i.shape[0] for i in inputs.values() if i.shape and isinstance(i.shape[0], int)}
    fixed = None
    if whole:
        fixed = 1
    elif firsts:
        if len(firsts) > 1:
            raise StageError(
                f"the inputs fix different first axes ({sorted(firsts)}), so there is no batch axis; {WAY_OUT}"
            )
        fixed = firsts.pop()
    return BatchedInference(session, used, whole, fixed)


WAY_OUT = "give every input one axis more: each sample is then a whole input"


def tensor_output_names(session: Any) -> list[str]:
    """Return the outputs that are tensors; a sequence of maps (scikit-learn's ZipMap) has no shape to compare."""
    return [output.name for output in session.get_outputs() if output.type.startswith("tensor(")]


def _typed(name: str, array: npt.NDArray[np.generic], kind: str) -> npt.NDArray[np.generic]:
    wanted = DTYPES.get(kind)
    if wanted is None:
        raise StageError(f"input '{name}' is a {kind}, which numpy has no type for")
    if wanted is np.str_ or array.dtype.kind in "US":
        if wanted is np.str_ and array.dtype.kind == "U":
            return array
        raise StageError(f"input '{name}' takes {kind}; the samples are {array.dtype}")
    if array.dtype != wanted and not (np.can_cast(array.dtype, wanted, "same_kind") or array.dtype.kind in "iub"):
        raise StageError(f"input '{name}' takes {kind}; the samples are {array.dtype}, which would lose their meaning")
    return array.astype(wanted, copy=False)


def _joined(name: str, parts: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = sorted({str(part.shape[1:]) for part in parts})
        raise StageError(
            f"output '{name}' changes its shape from call to call ({', '.join(shapes[:3])}), so answers "
            "cannot be compared; leave that output out of the model, or give inputs for which it keeps one shape"
        )
    return np.concatenate(parts)
