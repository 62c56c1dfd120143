"""Put the rows of a set in the order of the expected ones, so that rounding that swaps two boxes is no difference."""

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.ragged import paired
from gauntlet.core.signature import Signature
from gauntlet.metrics.error_metrics import output_scale

SAME = 1e-4
"""Largest difference, as a share of an output's scale, of rows that are in order already."""
FAR = 1e3
"""Of a value from padding, which no other value is near."""


def in_expected_order(actual: NamedArrays, expected: NamedArrays, signature: Signature | None) -> NamedArrays:
    """Return the outputs, by name and of shape (n, ...), with the rows of sets, shape (n, rows, ...), matched.

    The sum of all differences is the least (Kuhn, The Hungarian Method, 1955). The outputs of a set share their rows.
    """
    pairs = {name: paired(actual[name], expected[name])[:2] for name in (signature.sets if signature else ())}
    rows = {pair[1].shape[:2] for pair in pairs.values() if pair[1].ndim > 1}
    pairs = {name: pair for name, pair in pairs.items() if pair[0].shape == pair[1].shape and pair[1].ndim > 1}
    if not pairs or len(rows) > 1:
        return actual
    ordered = {name: pair[0].copy() for name, pair in pairs.items()}
    scales = {name: output_scale(pair[1]) for name, pair in pairs.items()}
    for index in range(len(next(iter(ordered.values())))):
        returned, wanted = (
            np.concatenate([_values(pair[side][index], scales[name]) for name, pair in pairs.items()], axis=1)
            for side in (0, 1)
        )
        if returned.size and np.abs(returned - wanted).max() > SAME:
            order = linear_sum_assignment(cdist(wanted, returned, "cityblock"))[1]
            for name, (values, _) in pairs.items():
                ordered[name][index] = values[index][order]
    return actual | ordered


def _values(rows: Array, scale: float) -> npt.NDArray[np.float64]:
    """Return rows as numbers relative to the scale, shape (rows, values)."""
    wide = rows.reshape(len(rows), -1).astype(np.float64) / scale
    return np.clip(np.nan_to_num(wide, nan=FAR), -FAR, FAR)
