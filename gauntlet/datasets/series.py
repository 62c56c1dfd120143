"""Samples that are windows of one series: a random split puts overlapping ones on both sides."""

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.report import Check
from gauntlet.datasets.splitting import GROUPS, TIMES

MIN_SHARE, MAX_BY_CHANCE = 0.9, 0.05
"""Of the samples that continue another one as they are, and with each column in another order."""
MAX_VALUES = 4_000_000
"""Of an input that are looked at."""


def windows_check(inputs: NamedArrays) -> tuple[Check, ...]:
    """Return a warning where most samples of an input are windows that overlap; nothing otherwise."""
    shares = {name: _continued(array) for name, array in inputs.items() if array.ndim in (2, 3)}
    fix = f"give {TIMES} or {GROUPS} (--time, --group): one number, or text, for each sample"
    return tuple(
        Check.of(
            "data.overlapping_windows",
            share,
            "<=",
            MIN_SHARE,
            f"so many samples of {name!r} end as another one goes on, as windows of a series do; with a random split, "
            "test samples are largely known from others",
            fix,
            severity="warning",
        )
        for name, share in shares.items()
        if share > MIN_SHARE
    )


def _continued(array: Array) -> float:
    """Return the share of the samples, shape (n, steps, ...), whose second half is found earlier in another one."""
    rows = array[: max(1, MAX_VALUES // max(1, array[0].size))] if len(array) else array
    if array.dtype.kind not in "fiu" or array.ndim < 2 or array.shape[1] < 4 or len(rows) < 4:
        return 0.0
    values = np.ascontiguousarray(rows, np.float64).view(np.uint64).reshape(*rows.shape[:2], -1)
    rng = np.random.default_rng(0)
    steps = np.sum(values * rng.integers(1, 2**63, values.shape[2], np.uint64), axis=2, dtype=np.uint64)
    return 0.0 if _share(rng.permuted(steps, axis=0)) > MAX_BY_CHANCE else _share(steps)


def _share(steps: npt.NDArray[np.uint64]) -> float:
    """Return the share of rows whose second half is found from an earlier step on, by sums modulo 2⁶⁴ of its values."""
    half, factor = steps.shape[1] // 2, np.uint64(0x9E3779B97F4A7C15)
    powers = np.cumprod(np.full(steps.shape[1], factor), dtype=np.uint64)
    sums = np.cumsum(steps * powers, axis=1, dtype=np.uint64)
    sums = np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)
    inverse = np.cumprod(np.full(steps.shape[1], np.uint64(pow(int(factor), -1, 2**64))), dtype=np.uint64)
    found = (sums[:, half:] - sums[:, :-half]) * inverse[: sums.shape[1] - half]
    distinct = 1 + np.count_nonzero(np.diff(np.sort(steps[:, -half:], axis=1)), axis=1)  # of padding, there are few
    return float(np.mean(np.isin(found[:, -1], found[:, :-1]) & (2 * distinct > half)))
