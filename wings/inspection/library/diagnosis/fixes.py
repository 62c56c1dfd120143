"""Apply the safe fixes in a child process: each on a copy whose outputs are compared, then kept or undone."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import first_axis, required_inputs, tensor_shape, updated_signature
from gauntlet.onnx_model.model_file import exceeds_protobuf_limit, write_model
from gauntlet.onnx_model.normalization.branches import fold_branches
from gauntlet.onnx_model.normalization.constants import drop_default_inputs, lift_constants
from gauntlet.onnx_model.normalization.opset import raise_opset
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.normalization.shapes import infer_shapes_anew, keep_zero_padding
from gauntlet.onnx_model.normalization.tidy import inline_functions, make_names_unique, remove_unused
from gauntlet.runtime.session import supported_ir_version
from wings.inspection.library.diagnosis.context import ModelContext, read_context
from wings.inspection.library.diagnosis.faults import (
    frozen_batch,
    leaked_constant,
    missing_shapes,
    slow_first_call,
    training_mode,
    unsupported_version,
    wrong_layout,
)
from wings.inspection.library.diagnosis.faults.unnormalized import NEW_OPSET
from wings.inspection.library.diagnosis.findings import CallerHints, Fault, FixAttempt, FixResult
from wings.inspection.library.diagnosis.runtime_checks import hidden_sizes, open_limited

FIXES: dict[Fault, Callable[[ModelContext], str]] = {
    "unsorted_nodes": lambda context: sort_nodes(context.proto),
    "repeated_names": lambda context: make_names_unique(context.proto),
    "training_mode": lambda context: training_mode.fix(context.proto),
    "too_new": lambda context: unsupported_version.fix(context.proto),
    "leaked_constant": leaked_constant.fix,
    "local_functions": lambda context: inline_functions(context.proto),
    "constant_weights": lambda context: lift_constants(context.proto),
    "default_inputs": lambda context: drop_default_inputs(context.proto, context.declared_inputs),
    "constant_branch": lambda context: fold_branches(context.proto),
    "forgotten_padding": lambda context: keep_zero_padding(context.proto),
    "old_opset": lambda context: f"converted {raise_opset(context.proto, NEW_OPSET, supported_ir_version())}",
    "frozen_batch": lambda context: frozen_batch.fix(context, smallest_batch(ComparisonModel(context), context)[0]),
    "wrong_layout": wrong_layout.fix,
    "unused_nodes": lambda context: remove_unused(context.proto),
    "wrong_shapes": lambda context: infer_shapes_anew(context.proto),
    "missing_shapes": lambda context: missing_shapes.fix(context.proto),
    "slow_first_call": lambda context: slow_first_call.fix(context.proto),
}
"""In order of application: random outputs, and models that do not load, must be fixed before others are compared."""


def apply_fixes(path: Path, target: Path, hints: CallerHints, faults: tuple[Fault, ...]) -> FixResult:
    """Apply the fixes of the given faults; write the model with its weights to `target` if any fix was kept."""
    context = replace(read_context(path, hints), proto=onnx.load(path))
    steps: list[FixAttempt] = []
    for fault, fix in FIXES.items():
        if fault in faults:
            changed = replace(context, proto=onnx.ModelProto())
            changed.proto.CopyFrom(context.proto)
            steps.append(_try(fault, fix, context, changed))
            context = changed if steps[-1].kept else context
    kept = any(step.kept for step in steps)
    if kept:
        _write(context.proto, target)
    return FixResult(output=str(target) if kept else None, steps=tuple(steps))


def _try(fault: Fault, fix: Callable[[ModelContext], str], before: ModelContext, after: ModelContext) -> FixAttempt:
    try:
        done = fix(after)
        _update_signature(fault, before, after)
        error, compared = verify_fix(fault, before, after)
    except MemoryError:
        raise
    except Exception as failure:  # converters and passes raise arbitrary exceptions; the fix is undone
        return FixAttempt(fault=fault, done=f"not applied: {one_line(failure)}", kept=False)
    kept = error is None or error <= LIMIT
    done = done if kept else f"undone: the outputs change by {error:.3g}, above the limit of {LIMIT:g}"
    return FixAttempt(fault=fault, done=done, kept=kept, max_abs_error=error, compared=compared)


def _update_signature(fault: Fault, before: ModelContext, after: ModelContext) -> None:
    """Change the signature only where the fix changed the graph; the rest is the contract with the callers."""
    if after.signature is None:
        return
    signature = updated_signature(after.signature, before.graph, after.graph)
    if fault == "wrong_layout":
        signature = signature.replace(layout=wrong_layout.image_inputs(after.graph)[0].layout)
    signature.write(after.proto)


def _write(proto: onnx.ModelProto, target: Path) -> None:
    """Write a temporary file and rename it, so that an interruption leaves the old file intact."""
    if exceeds_protobuf_limit(proto):  # the weights go into a second file, which the first one names
        write_model(proto, target)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = Path(folder) / target.name
        write_model(proto, unfinished)
        unfinished.replace(target)


LIMIT = 1e-4
"""Largest allowed difference of an output, relative to the output's largest value where that is above 1."""

Compared = tuple[float | None, str]


class ComparisonModel:
    """A model in memory, run by ONNX Runtime, or by ONNX's reference evaluator where ONNX Runtime rejects it."""

    def __init__(self, context: ModelContext) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_model(context.proto, path)
            try:
                session = open_limited(path, level="off")  # optimizations may be what is wrong
                self.by, self.names, self._run = "ONNX Runtime", [o.name for o in session.get_outputs()], session.run
            except StageError:
                from onnx.reference import ReferenceEvaluator

                model = ReferenceEvaluator(context.proto)
                self.by, self.names, self._run = "ONNX's reference evaluator", list(model.output_names), model.run

    def __call__(self, feed: NamedArrays) -> NamedArrays:
        """Return the outputs that are tensors."""
        values = zip(self.names, self._run(None, feed), strict=True)
        return {name: value for name, value in values if isinstance(value, np.ndarray)}


def verify_fix(fault: Fault, before: ModelContext, after: ModelContext) -> Compared:
    """Return the largest difference of the outputs before and after a fix, and what they were compared with.

    The difference is None where the original does not run; `StageError` when the fixed model does not run.
    """
    try:
        new = ComparisonModel(after)
    except Exception as error:  # the reference evaluator raises arbitrary exceptions
        raise StageError(f"the fixed model does not load: {one_line(error)}") from error
    if fault == "training_mode":
        return _compare_training_mode(new, after)
    try:
        old = ComparisonModel(before)
        portion, size = smallest_batch(old, before)
    except Exception as error:
        smallest_batch(new, after)
        return None, f"nothing: the original does not run ({one_line(error)})"
    if fault == "frozen_batch":
        return _compare_batches(old, new, after, portion, size)
    worst = 0.0
    for count in (portion, 2 * portion) if before.generator.takes_batches else (portion,):
        feed = before.generator.feed(count, size)
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
            return math.inf
        if array.dtype.kind not in "fiub":
            worst = max(worst, 0.0 if np.array_equal(array, other) else math.inf)
            continue
        a, b = array.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0)))
        worst = max(worst, float(np.nan_to_num(gap, nan=np.inf).max(initial=0)) / scale)
    return worst


def _adapt_feed(fault: Fault, before: ModelContext, after: ModelContext, feed: NamedArrays) -> NamedArrays:
    """Return the same samples in the layout of the fixed model, without inputs that it no longer has."""
    shapes = {value.name: tensor_shape(value) for value in required_inputs(after.graph)}
    feed = {name: array for name, array in feed.items() if name in shapes}
    for image in wrong_layout.image_inputs(before.graph) if fault == "wrong_layout" else ():
        name = image.value.name
        if tensor_shape(image.value) != shapes[name]:
            feed[name] = np.ascontiguousarray(feed[name].transpose(wrong_layout.FROM[image.layout]))
    return feed


def _run_with_fitting_size(model: ComparisonModel, context: ModelContext, count: int = 1) -> tuple[int, NamedArrays]:
    failure = "no inputs could be generated"
    for size, feed in context.generator.feeds(count):
        try:
            return size, model(feed)
        except Exception as error:  # ONNX Runtime's exceptions share no public base
            failure = one_line(error)
    raise StageError(f"the model does not run: {failure}")


def smallest_batch(model: ComparisonModel, context: ModelContext) -> tuple[int, int]:
    """Return the smallest batch with which a model runs, and the size of its other dynamic axes, or `StageError`."""
    frozen = [first for v in frozen_batch.frozen_values(context) if isinstance(first := first_axis(v), int)]
    failures = []
    for count in frozen[:1] or [1, *hidden_sizes(context.graph)]:
        try:
            return count, _run_with_fitting_size(model, context, count)[0]
        except StageError as error:
            failures.append(error)
    raise failures[0]


def _compare_batches(
    old: ComparisonModel, new: ComparisonModel, after: ModelContext, portion: int, size: int
) -> Compared:
    """Compare one call with three batches with three calls of the batch size that the original takes."""
    whole = after.generator.feed(3 * portion, size)
    split = {v.name for v in required_inputs(after.graph) if not isinstance(first_axis(v), int)}
    starts = range(0, 3 * portion, portion)
    parts = [old({n: a[i : i + portion] if n in split else a for n, a in whole.items()}) for i in starts]
    expected = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if parts[0][name].ndim}
    return difference(expected, new(whole)), f"the original's outputs for {portion} sample(s) per call, by {old.by}"


def _compare_training_mode(new: ComparisonModel, after: ModelContext) -> Compared:
    """Compare with the expected outputs if given, else a sample on its own with the same sample in a batch.

    The original's outputs are no reference: they depend on the statistics of the batch, or are random.
    """
    expected = {name: after.data[name] for name in new.names if name in after.data}
    size, alone = _run_with_fitting_size(new, after)
    if expected:
        feed = after.generator.feed(len(next(iter(expected.values()))), size)
        return difference(expected, new(feed)), "the expected outputs in --data"
    if not after.generator.takes_batches:
        again = _run_with_fitting_size(new, after)[1]
        return difference(alone, again), "a second call; the original's outputs are random"
    many = new(after.generator.feed(3, size))
    rows = {name: array[:1] for name, array in many.items() if array.shape[:1] == (3,)}
    error = difference({name: alone[name] for name in rows}, rows)
    return error, "the same sample in a batch of 3; the original's outputs depend on the batch"
