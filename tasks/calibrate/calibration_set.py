"""The calibration set, or a reader of the user's own: enough images, every class, and no image of the test split."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

import numpy as np
from pydantic import Field

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check, Severity
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import UserFunction
from gauntlet.datasets.audit import shared_samples
from gauntlet.datasets.splits import ArraySplit, Split
from gauntlet.datasets.truth import class_indices

MAX_RANGE_CHANGE = 0.1
"""Shift of a range's end by the second half of the images, relative to its width, of the typical converged range.

The widest of many ranges keeps growing with its rarest value, which says nothing of the others.
"""
MAX_NAMED = 5  # tensors, classes or images in a message


class RangeChange(Frozen):
    """How far the ranges computed from part of the images are from the final ones."""

    method: str
    images: int
    change: Number = Field(
        description="largest shift of a range's end by the second half of the images, relative to its width"
    )
    tensor: str = Field(description="the tensor whose range changes most")
    typical: Number = Field(description="the median of these shifts over all tensors")


def changes(after: Mapping[int, Ranges]) -> tuple[RangeChange, ...]:
    """Compare the ranges computed from part of the images with the final ones, by method."""
    *earlier, last = sorted(after)
    result = []
    for method, final in after[last].methods.items():
        for images in earlier:
            shifts = {t: _shift(r, final[t]) for t, r in after[images].methods[method].items()}
            if shifts:
                worst = max(shifts, key=lambda tensor: shifts[tensor])
                shift = {"change": shifts[worst], "typical": float(np.median([*shifts.values()]))}
                result.append(RangeChange(method=method, images=images, tensor=worst, **shift))
    return tuple(result)


def _shift(before: tuple[float, float], after: tuple[float, float]) -> float:
    distance = max(abs(old - new) for old, new in zip(before, after, strict=True))
    width = after[1] - after[0]
    return distance / width if width else 0.0


def convergence_check(range_changes: tuple[RangeChange, ...], images: int, at_hand: int, severity: Severity) -> Check:
    """Check the change of the ranges from half of the images to all; with too few images to halve, it fails.

    `at_hand` is the size of the calibration split, of which `images` were used.
    """
    half = [change for change in range_changes if change.images == max(c.images for c in range_changes)]
    worst = max(half, key=lambda change: change.typical, default=None)
    enough = worst is not None and worst.typical <= MAX_RANGE_CHANGE
    verdict = f"{images} samples are enough" if enough else f"not converged at {images} samples"
    reason = "too few to compare half of them with all"
    if worst is not None:
        most = f"that of {worst.tensor!r} by {worst.change:.1%}"
        reason = f"from {worst.images} of them, the typical {worst.method} range differs by {worst.typical:.1%}, {most}"
    remedy = "raise calibrate.images" if images < at_hand else "bring more samples for the calibration split"
    if worst is not None and worst.method == "minmax":
        remedy += ", or use a method that clips outliers"
    name, value, detail = "calibrate.max_range_change", worst.typical if worst else None, f"{verdict}: {reason}"
    return Check.of(name, value, "<=", MAX_RANGE_CHANGE, detail, remedy, severity=severity)


def class_coverage_check(split: Split, images: int, labels: tuple[str, ...], severity: Severity) -> Check | None:
    """Check that every class has a calibration image; None without labels."""
    classes = class_indices(split.labels)
    if classes is None or not labels:
        return None
    present = set(np.unique(classes[:images]).tolist())
    missing = [name for number, name in enumerate(labels) if number not in present]
    detail = f"no calibration sample of {', '.join(missing[:MAX_NAMED])}"
    remedy = "raise calibrate.images, or add samples of every class to the calibration split"
    return _none_found("missing_classes", len(missing), "classes", severity, detail, remedy)


def finite_check(non_finite: tuple[str, ...], inputs: Collection[str], outputs: Collection[str]) -> Check:
    """Check that every activation is finite: NaN and infinity have no range, so their nodes stay in float.

    They can be meant: a mask is minus infinity, and a missing value NaN, which a model replaces. From an input to an
    output, they are an error.
    """
    detail = f"NaN or infinity in {', '.join(non_finite[:MAX_NAMED])} (in graph order)"
    severity: Severity = "warning"
    if not (set(inputs).isdisjoint(non_finite) or set(outputs).isdisjoint(non_finite)):
        severity = "error"
    remedy = "check the node that computes the first of them, and the samples; until then, remove the static recipes"
    if severity == "warning":
        remedy = "none where it is meant, as a mask or a missing value: its nodes stay in float; else check the first"
    return _none_found("non_finite_tensors", len(non_finite), "tensors", severity, detail, remedy)


def test_overlap_check(split: Split, images: int, test: Split, severity: Severity) -> Check:
    """Check that no calibration image is in the test split, where it would inflate the quantized model's accuracy."""
    shared = [(ours, theirs) for ours, theirs in shared_samples(split, test) if ours < images]
    detail = "; ".join(f"calibration[{ours}] is test[{theirs}]" for ours, theirs in shared[:MAX_NAMED])
    remedy = "remove them from the calibration split: calibrating on test samples overstates the accuracy"
    return _none_found("test_overlap", len(shared), "samples", severity, detail, remedy)


def _none_found(metric: str, value: int, unit: str, severity: Severity, detail: str, remedy: str) -> Check:
    check = Check(name=f"calibrate.{metric}", value=value, op="==", limit=0, unit=unit, severity=severity)
    return check.explained(detail, remedy)


def read_batches(reader: UserFunction, signature: Signature, images: int) -> ArraySplit:
    """Return the first samples, at most `images`, of what a function without arguments yields.

    It returns an iterable of dictionaries: arrays (n, ...) by the model's inputs. A class that is a
    `CalibrationDataReader` of ONNX Runtime is such a function, too.

    Raises:
        StageError: when the function fails, or what it yields does not fit the model's inputs.
    """
    function = reader.load()
    names = [spec.name for spec in signature.inputs]
    parts: list[dict[str, np.ndarray[Any, Any]]] = []
    try:
        result = function()
        batches = iter(result.get_next, None) if hasattr(result, "get_next") else result
        for batch in islice(batches, images):
            parts.append(_checked(reader, batch, names))
            if sum(len(part[names[0]]) for part in parts) >= images:
                break
    except StageError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise StageError(f"calibrate.reader: {reader.function} fails: {type(error).__name__}: {error}") from error
    if not parts:
        raise StageError(f"calibrate.reader: {reader.function} yields nothing; yield arrays of {', '.join(names)}")
    shapes = {name: {part[name].shape[1:] for part in parts} for name in names}
    if uneven := next((name for name, sizes in shapes.items() if len(sizes) > 1), None):
        text = ", ".join(map(str, sorted(shapes[uneven])))
        raise StageError(f"calibrate.reader: {reader.function} yields {uneven!r} in different sizes ({text})")
    return ArraySplit({name: np.concatenate([part[name] for part in parts])[:images] for name in names})


def _checked(reader: UserFunction, batch: object, names: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of one batch by the names of the inputs."""
    expected = f"a dictionary with arrays of shape (n, ...) for {', '.join(names)}"
    if not isinstance(batch, dict) or set(batch) != set(names):
        actual = f"one of {sorted(map(str, batch))}" if isinstance(batch, dict) else type(batch).__name__
        raise StageError(f"calibrate.reader: {reader.function} yields {actual}; expected {expected}")
    arrays = {name: np.asarray(batch[name]) for name in names}
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise StageError(f"calibrate.reader: {reader.function} yields arrays of shape {shapes}; expected {expected}")
    return arrays
