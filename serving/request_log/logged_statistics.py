"""Statistics of the inputs of many requests, computed together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.request_log.input_statistics import input_statistics

STATISTICS_BYTES = 4_000_000
"""Of the inputs whose statistics are computed together."""


@dataclass(frozen=True, slots=True)
class LoggedInputs:
    """The inputs of one request to one version of a model."""

    version: str
    signature: Signature
    arrays: NamedArrays

    @property
    def first(self) -> Array:
        """The input that statistics are of, shape (n, ...)."""
        return self.arrays[self.signature.inputs[0].name]


def statistics_of(requests: Mapping[int, LoggedInputs]) -> dict[int, Array]:
    """Return the statistics of requests by their keys, shape (n, k) each; those of one shape are computed together.

    Requests whose inputs do not have one entry per sample have none.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, request in requests.items():
        if request.first.ndim:
            groups.setdefault((request.version, request.first.shape[1:]), []).append(place)
    statistics: dict[int, Array] = {}
    for places in groups.values():
        most = max(1, STATISTICS_BYTES // max(1, *(requests[place].first.nbytes for place in places)))
        for start in range(0, len(places), most):
            some = places[start : start + most]
            with suppress(ValueError, IndexError, TypeError):
                statistics |= zip(some, _computed_together([requests[place] for place in some]), strict=True)
    return statistics


def _computed_together(requests: Sequence[LoggedInputs]) -> Iterator[Array]:
    """Yield each request's statistics; all of them take the same shape."""
    signature = requests[0].signature
    arrays = [request.first for request in requests]
    statistics = input_statistics({signature.inputs[0].name: np.concatenate(arrays)}, signature)
    for array, end in zip(arrays, accumulate(map(len, arrays)), strict=True):
        yield statistics[end - len(array) : end]
