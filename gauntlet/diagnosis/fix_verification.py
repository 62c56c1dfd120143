"""Check that a fix does not change the outputs: run both models on the same samples."""

import tempfile
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.diagnosis.context import ModelContext
from gauntlet.diagnosis.faults import frozen_batch, leaked_constant, wrong_layout
from gauntlet.diagnosis.findings import Fault
from gauntlet.diagnosis.input_generator import InputGenerator, attempts
from gauntlet.diagnosis.runtime_checks import threads
from gauntlet.onnx_model.graph import one_line, required_inputs, tensor_shape
from gauntlet.onnx_model.model_file import write_model
from gauntlet.runtime.session import open_session

LIMIT = 1e-4
"""Largest allowed difference of an output, relative to the output's largest value where that is above 1."""

Compared = tuple[float | None, str]


class ComparisonModel:
    """A model in memory, run by ONNX Runtime, or by ONNX's reference evaluator where ONNX Runtime rejects it."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.by = "ONNX Runtime"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_model(proto, path)
            try:
                session = open_session(path, threads=threads())
                self.names = [o.name for o in session.get_outputs()]
                self._run = session.run
            except StageError:
                from onnx.reference import ReferenceEvaluator

                reference = ReferenceEvaluator(proto)
                self.by, self.names, self._run = (
                    "ONNX's reference evaluator",
                    list(reference.output_names),
                    reference.run,
                )

    def __call__(self, feed: NamedArrays) -> NamedArrays:
        """Return the outputs that are tensors."""
        values = zip(self.names, self._run(None, feed), strict=True)
        return {name: value for name, value in values if isinstance(value, np.ndarray)}


def verify_fix(fault: Fault, before: ModelContext, after: ModelContext) -> Compared:
    """Return the largest difference of the outputs before and after a fix, and what they were compared with.

    The difference is None where the original does not run, so that there is nothing to compare with.

    Raises:
        StageError: when the fixed model does not run.
    """
    try:
        new = ComparisonModel(after.proto)
    except Exception as error:  # the reference evaluator raises arbitrary exceptions
        raise StageError(f"the fixed model does not load: {one_line(error)}") from error
    if fault == "training_mode":
        return _compare_training_mode(new, after)
    try:
        old = ComparisonModel(before.proto)
        portion, size = smallest_batch(old, before)
    except Exception as error:
        smallest_batch(new, after)
        return None, f"nothing: the original does not run ({one_line(error)})"
    if fault == "frozen_batch":
        return _compare_batches(old, new, after, portion, size)
    worst = 0.0
    for count in (portion, 2 * portion) if InputGenerator.from_graph(before.graph, {}).takes_batches else (portion,):
        feed = InputGenerator.from_graph(before.graph, before.data).feed(count, size)
        feed |= {name: array for name, array in leaked_constant.stored_values(before).items() if name in feed}
        try:
            expected = old(feed)
        except Exception:  # the batch may be frozen, which another fix repairs
            continue
        worst = max(worst, difference(expected, new(_adapt_feed(fault, before, after, feed))))
    return worst, f"the original's outputs, by {old.by}"


def difference(expected: NamedArrays, actual: NamedArrays) -> float:
    """Return the largest difference of any output; infinite where one is missing or has another shape."""
    worst = 0.0
    for name, array in expected.items():
        other = actual.get(name)
        if other is None or other.shape != array.shape:
            return float("inf")
        if array.dtype.kind not in "fiub":
            worst = max(worst, 0.0 if np.array_equal(array, other) else float("inf"))
            continue
        a, b = array.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        finite = a[np.isfinite(a)]
        scale = max(1.0, float(np.abs(finite).max(initial=0)))
        worst = max(worst, float(np.nan_to_num(gap, nan=np.inf).max(initial=0)) / scale)
    return worst


def _adapt_feed(fault: Fault, before: ModelContext, after: ModelContext, feed: NamedArrays) -> NamedArrays:
    """Return the same samples in the layout of the fixed model, without inputs that it no longer has."""
    wanted = {value.name for value in required_inputs(after.graph)}
    feed = {name: array for name, array in feed.items() if name in wanted}
    if fault == "wrong_layout":
        for image in wrong_layout.image_inputs(before.graph):
            name = image.value.name
            if tensor_shape(image.value) != next(tensor_shape(v) for v in after.graph.input if v.name == name):
                feed[name] = np.ascontiguousarray(feed[name].transpose(wrong_layout.FROM[image.layout]))
    return feed


def _runs_with(model: ComparisonModel, context: ModelContext, count: int = 1) -> tuple[int, NamedArrays]:
    failure = "no inputs could be made"
    for size, feed in attempts(InputGenerator.from_graph(context.graph, context.data), count):
        try:
            return size, model(feed)
        except Exception as error:  # ONNX Runtime's exceptions share no public base
            failure = one_line(error)
    raise StageError(f"the model does not run: {failure}")


def smallest_batch(model: ComparisonModel, context: ModelContext) -> tuple[int, int]:
    """Return the smallest batch size with which a model runs, and the size of its other dynamic axes.

    Raises:
        StageError: when it runs with none of the likely sizes.
    """
    firsts = [(tensor_shape(v) or (None,))[0] for v in frozen_batch.frozen_values(context)]
    likely = [first for first in firsts if isinstance(first, int)][:1] or [1, *frozen_batch.hidden_sizes(context.graph)]
    failure: StageError | None = None
    for count in likely:
        try:
            return count, _runs_with(model, context, count)[0]
        except StageError as error:
            failure = failure or error
    raise failure or StageError("the model does not run")


def _compare_batches(
    old: ComparisonModel, new: ComparisonModel, after: ModelContext, portion: int, size: int
) -> Compared:
    """Compare one call with three batches with three calls of the batch size that the original takes."""
    now = [(tensor_shape(v) or (None,))[0] for v in required_inputs(after.graph)]
    whole = InputGenerator.from_graph(after.graph, after.data).feed(3 * portion, size)
    split = {v.name for v, a in zip(required_inputs(after.graph), now, strict=True) if not isinstance(a, int)}
    parts = [
        old({n: a[i : i + portion] if n in split else a for n, a in whole.items()})
        for i in range(0, 3 * portion, portion)
    ]
    expected = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if parts[0][name].ndim}
    return difference(expected, new(whole)), f"the original's outputs for {portion} sample(s) per call, by {old.by}"


def _compare_training_mode(new: ComparisonModel, after: ModelContext) -> Compared:
    """Compare with the expected outputs if given, else a sample on its own with the same sample in a batch.

    The original's outputs are no reference: they depend on the statistics of the batch, or are random.
    """
    right = {name: after.data[name] for name in new.names if name in after.data}
    size, alone = _runs_with(new, after)
    if right:
        count = len(next(iter(right.values())))
        feed = InputGenerator.from_graph(after.graph, after.data).feed(count, size)
        return difference(right, new(feed)), "the expected outputs in --data"
    if not InputGenerator.from_graph(after.graph, {}).takes_batches:
        return difference(alone, _runs_with(new, after)[1]), "a second call; the original's outputs are random"
    many = new(InputGenerator.from_graph(after.graph, after.data).feed(3, size))
    rows = {name: array[:1] for name, array in many.items() if array.shape[:1] == (3,)}
    return difference(
        {name: alone[name] for name in rows}, rows
    ), "the same sample in a batch of 3; the original's outputs depend on the batch"
