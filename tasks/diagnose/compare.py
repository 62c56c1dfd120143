"""Whether a fix left the answers alone: both models get the same samples."""

import tempfile
from pathlib import Path

import numpy as np
import onnx

from tasks.diagnose import batch, constants, layout
from tasks.diagnose.clues import Arrays, Clues
from tasks.diagnose.feeds import Feeder, attempts
from tasks.diagnose.finding import Fault
from tasks.diagnose.probe import threads
from tasks.errors import StageError
from tasks.model_file import write_model
from tasks.runtime.graph import axes, one_line, required_inputs
from tasks.runtime.session import open_session

LIMIT = 1e-4
"""Largest allowed difference of an output, relative to the output's largest value where that is above 1."""

Compared = tuple[float | None, str]


class Model:
    """A model in memory that answers; the runtime does it, or ONNX's reference where the runtime refuses."""

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
                self.by, self.names, self._run = "ONNX's reference", list(reference.output_names), reference.run

    def __call__(self, feed: Arrays) -> Arrays:
        """Return the outputs that are tensors."""
        values = zip(self.names, self._run(None, feed), strict=True)
        return {name: value for name, value in values if isinstance(value, np.ndarray)}


def compare(fault: Fault, before: Clues, after: Clues) -> Compared:
    """Return the largest difference that the fix of this fault made, and with what the answers were compared.

    The difference is None where the old model does not run at all, so that there is nothing to compare with.

    Raises:
        StageError: when the new model does not run.
    """
    try:
        new = Model(after.proto)
    except Exception as error:  # the reference evaluator raises what it likes
        raise StageError(f"the result does not load: {one_line(error)}") from error
    if fault == "training_mode":
        return _answers_alone(new, after)
    try:
        old = Model(before.proto)
        portion, size = smallest_batch(old, before)
    except Exception as error:
        smallest_batch(new, after)
        return None, f"nothing: the original does not run ({one_line(error)})"
    if fault == "frozen_batch":
        return _batches(old, new, after, portion, size)
    worst = 0.0
    for count in (portion, 2 * portion) if Feeder.of(before.graph, {}).takes_batches else (portion,):
        feed = Feeder.of(before.graph, before.data).feed(count, size)
        feed |= {name: array for name, array in constants.stored_values(before).items() if name in feed}
        try:
            expected = old(feed)
        except Exception:  # the batch may be frozen, which another fix mends
            continue
        worst = max(worst, difference(expected, new(_translated(fault, before, after, feed))))
    return worst, f"the original's answers, by {old.by}"


def difference(expected: Arrays, actual: Arrays) -> float:
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


def _translated(fault: Fault, before: Clues, after: Clues, feed: Arrays) -> Arrays:
    """Return the same samples as the new model wants them."""
    wanted = {value.name for value in required_inputs(after.graph)}
    feed = {name: array for name, array in feed.items() if name in wanted}
    if fault == "wrong_layout":
        for picture in layout.pictures(before.graph):
            name = picture.value.name
            if axes(picture.value) != next(axes(v) for v in after.graph.input if v.name == name):
                feed[name] = np.ascontiguousarray(feed[name].transpose(layout.FROM[picture.takes]))
    return feed


def _runs_with(model: Model, clues: Clues, count: int = 1) -> tuple[int, Arrays]:
    complaint = "no inputs could be made"
    for size, feed in attempts(Feeder.of(clues.graph, clues.data), count):
        try:
            return size, model(feed)
        except Exception as error:  # the runtime's own exceptions share no public base
            complaint = one_line(error)
    raise StageError(f"it does not run: {complaint}")


def smallest_batch(model: Model, clues: Clues) -> tuple[int, int]:
    """Return the smallest batch with which a model runs, and the size of its other free axes.

    Raises:
        StageError: when it runs with none that is likely.
    """
    firsts = [(axes(v) or (None,))[0] for v in batch.frozen_values(clues)]
    likely = [first for first in firsts if isinstance(first, int)][:1] or [1, *batch.hidden_sizes(clues.graph)]
    complaint: StageError | None = None
    for count in likely:
        try:
            return count, _runs_with(model, clues, count)[0]
        except StageError as error:
            complaint = complaint or error
    raise complaint or StageError("it does not run")


def _batches(old: Model, new: Model, after: Clues, portion: int, size: int) -> Compared:
    """Compare three full batches in one call with the same samples in the portions that the old model takes."""
    now = [(axes(v) or (None,))[0] for v in required_inputs(after.graph)]
    whole = Feeder.of(after.graph, after.data).feed(3 * portion, size)
    split = {v.name for v, a in zip(required_inputs(after.graph), now, strict=True) if not isinstance(a, int)}
    parts = [
        old({n: a[i : i + portion] if n in split else a for n, a in whole.items()})
        for i in range(0, 3 * portion, portion)
    ]
    expected = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if parts[0][name].ndim}
    return difference(expected, new(whole)), f"the original's answers for {portion} sample(s) at a time, by {old.by}"


def _answers_alone(new: Model, after: Clues) -> Compared:
    """Compare with the right outputs where the caller gave them; else each sample alone with the same one among others.

    The original's answers are wrong by design: they came from the batch's own statistics.
    """
    right = {name: after.data[name] for name in new.names if name in after.data}
    size, alone = _runs_with(new, after)
    if right:
        count = len(next(iter(right.values())))
        feed = Feeder.of(after.graph, after.data).feed(count, size)
        return difference(right, new(feed)), "the right outputs that --data holds"
    if not Feeder.of(after.graph, {}).takes_batches:
        return difference(alone, _runs_with(new, after)[1]), "a second call; the original's answers depend on chance"
    many = new(Feeder.of(after.graph, after.data).feed(3, size))
    rows = {name: array[:1] for name, array in many.items() if array.shape[:1] == (3,)}
    return difference(
        {name: alone[name] for name in rows}, rows
    ), "the same sample in a batch of 3; the original's answers depend on their batch"
