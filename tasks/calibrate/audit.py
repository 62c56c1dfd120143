"""Is the calibration set good enough: enough images, of every class, and none of the test's."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from tasks.data.audit import in_both
from tasks.data.dataset import Split
from tasks.frozen import Frozen, Number
from tasks.ranges import Ranges
from tasks.report import Check

Severity = Literal["error", "warning"]

NAMED = 5
"""Tensors or classes that a message names."""


class RangeChange(Frozen):
    """How far the ranges after some of the images were from the final ones."""

    method: str
    images: int
    change: Number = Field(description="of the worst tensor: what an end moved by, over the width of the final range")
    tensor: str


def changes(after: Mapping[int, Ranges]) -> tuple[RangeChange, ...]:
    """Compare the ranges after some of the images with those after all, by method."""
    *earlier, last = sorted(after)
    found = []
    for method, final in after[last].methods.items():
        for images in earlier:
            moved = {t: _moved(r, final[t]) for t, r in after[images].methods[method].items()}
            if moved:
                worst = max(moved, key=lambda tensor: moved[tensor])
                found.append(RangeChange(method=method, images=images, change=moved[worst], tensor=worst))
    return tuple(found)


def _moved(before: tuple[float, float], after: tuple[float, float]) -> float:
    distance = max(abs(one - other) for one, other in zip(before, after, strict=True))
    width = after[1] - after[0]
    return distance / width if width else 0.0


def converged(found: tuple[RangeChange, ...], images: int, limit: float, severity: Severity) -> Check:
    """Judge the last doubling of the number of images; without one, nothing is known and the check does not pass."""
    half = [change for change in found if change.images == max(c.images for c in found)]
    worst = max(half, key=lambda change: change.change, default=None)
    enough = worst is not None and worst.change <= limit
    if worst is None:
        detail = f"not converged at {images} images: too few to compare a half of them with all"
    else:
        verdict = f"{images} images are enough" if enough else f"not converged at {images} images"
        detail = (
            f"{verdict}: with {worst.images} of them, the {worst.method} range of {worst.tensor!r} was "
            f"{worst.change:.1%} of its width away"
        )
    return Check(
        name="calibrate.max_range_change",
        value=worst and worst.change,
        op="<=",
        limit=limit,
        severity=severity,
        detail=detail,
        remedy=""
        if enough
        else "raise calibrate.images (and the calibration split's size), or take a method that clips outliers",
    )


def covers(split: Split, images: int, labels: tuple[str, ...], severity: Severity) -> Check | None:
    """Check that every class has a calibration image; None where there are no labels."""
    if split.labels is None or not labels:
        return None
    present = set(np.unique(split.labels[:images]).tolist())
    missing = [name for number, name in enumerate(labels) if number not in present]
    return Check(
        name="calibrate.missing_classes",
        value=len(missing),
        op="==",
        limit=0,
        unit="classes",
        severity=severity,
        detail=f"no calibration image of {', '.join(missing[:NAMED])}" if missing else "",
        remedy="raise calibrate.images, or give the calibration split images of every class" if missing else "",
    )


def finite(non_finite: tuple[str, ...]) -> Check:
    """Check that every activation is a number: there is no range around NaN or infinity."""
    return Check(
        name="calibrate.non_finite_tensors",
        value=len(non_finite),
        op="==",
        limit=0,
        unit="tensors",
        detail=f"NaN or infinity in {', '.join(non_finite[:NAMED])} (in the order of the graph)" if non_finite else "",
        remedy="look at the node that makes the first one, and at the images; leave static recipes out until then"
        if non_finite
        else "",
    )


def apart(split: Split, images: int, test: Split, severity: Severity) -> Check:
    """Check that no calibration image is in the test split, where it would make the quantised model look better."""
    shared = [(here, there) for here, there in in_both(split, test) if here < images]
    return Check(
        name="calibrate.test_images",
        value=len(shared),
        op="==",
        limit=0,
        unit="images",
        severity=severity,
        detail="; ".join(f"calibration[{here}] is test[{there}]" for here, there in shared[:NAMED]),
        remedy="take them out of the calibration split: a model calibrated on the test set looks better than it is"
        if shared
        else "",
    )
