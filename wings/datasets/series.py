"""Samples that are windows of one series: a random split puts overlapping ones on both sides."""

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.report import Check

NAME, MIN_SHARE, MAX_BY_CHANCE = "data.overlapping_windows", 0.9, 0.05
"""Shares of the samples that continue another one as they are, and with each column in another order."""
MAX_VALUES = 400_000
"""Of an input that are looked at."""
FIX = "say what to split by: split_times, split_groups (--time, --group), one number or text for each sample"


def windows_checks(inputs: NamedArrays) -> tuple[Check, ...]:
    """Return a warning where most samples of an input are windows that overlap; nothing otherwise."""
    shares = {name: _continued(array) for name, array in inputs.items() if array.ndim in (2, 3)}
    what = "samples of {!r} end as another one goes on, as windows of a series: the split leaves parts of each in all"
    return tuple(
        Check.of(NAME, share, "<=", MIN_SHARE, what.format(name), FIX, severity="warning")
        for name, share in shares.items()
        if share > MIN_SHARE
    )


def _continued(array: Array) -> float:
    """Return the share of the samples, shape (n, steps, ...), whose second half is found earlier in another one."""
    rows = array[: max(4, MAX_VALUES // max(1, array[:1].size))]
    if array.dtype.kind not in "fiu" or not rows.size or rows.shape[1] < 4:
        return 0.0
    by_chance = _share(np.random.default_rng(0).permuted(rows, axis=0))
    return 0.0 if by_chance > MAX_BY_CHANCE else _share(rows)


def _share(rows: Array) -> float:
    half = rows.shape[1] // 2
    known = {hash(row[k : k + half].tobytes()) for row in rows for k in range(rows.shape[1] - half)}
    ends = [row[-half:] for row in rows]
    varied = [2 * len({step.tobytes() for step in end}) > half for end in ends]  # as padding is not
    return float(np.mean([hash(end.tobytes()) in known and varies for end, varies in zip(ends, varied, strict=True)]))
