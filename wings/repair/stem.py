"""The stem: units at the inputs that are faster in float, because few channels gain nothing from integers.

A minimum cut of the graph, which may leave any units in float, was not faster than the first one to three of them on
six networks: each further border between floats and integers costs more than a profile of the kernels tells.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.profiler_trace import kernel_events, read_events
from gauntlet.runtime.session import open_session
from wings.repair.switchable_model import QUANTIZABLE, Unit, units_of

Floats = npt.NDArray[np.floating]
Kernels = Sequence[tuple[str, Mapping[str, Any]]]
MIN_GAIN = 0.03  # of the quantized model's time; predictions are wrong by as much
SHORTER = 0.95  # of the highest gain is enough for fewer units, as the errors of units add up
BORDER_US = 0.00025  # to convert an element and its layout; 0.0001 to 0.00045 in six networks
CALLS, SECONDS = (5, 15), 2.0  # of each model: at least and at most, and time for more than the least
MIN_KERNEL_US = 15  # on average; of shorter kernels, the profiler's own time is too large a part


class Stem(Frozen):
    """The first units, in float."""

    nodes: Unit = Field((), description="those at the inputs that are in float because they are faster so")
    gain: Number = Field(0.0, description="predicted share of the time that this saves")
    of: int = Field(0, description="number of nodes that can be left in float")


def find_stem(quantized: Path, prepared: Path, samples: NamedArrays) -> Stem:
    """Return the stem of a quantized model, which `prepared` is in float; an empty one where it gains too little."""
    nodes = read_graph(prepared).graph.node
    units, unit = units_of([node for node in nodes if node.op_type in QUANTIZABLE and node.name]), 0
    places = {name: place for place, names in enumerate(units) for name in names}
    stem, read = Stem(of=len(places)), dict[int, int]()  # a unit -> the last one that reads from it
    for node in nodes:
        unit = places.get(node.name, unit)
        places |= dict.fromkeys(filter(None, (node.name, *node.output)), unit)
        read |= {places[name]: max(read.get(places[name], 0), unit) for name in node.input if name in places}
    if len(units) < 2:
        return stem
    profiles = _profiles((quantized, prepared), samples)
    (integer_us, _), (float_us, elements) = (unit_times(kernels, places, len(units)) for kernels in profiles)
    if min(integer_us.sum() / len(dict(profiles[0])), float_us.sum() / len(dict(profiles[1]))) < MIN_KERNEL_US:
        return stem
    borders = [sum(elements[at] for at in range(end) if read.get(at, 0) >= end) for end in range(1, len(units) + 1)]
    length, gain = stem_length(integer_us, float_us, BORDER_US * np.array(borders))
    return stem.replace(nodes=tuple(name for names in units[:length] for name in names), gain=gain)


def stem_length(integer_us: Floats, float_us: Floats, border_us: Floats) -> tuple[int, float]:
    """Return how many of the first units to leave in float, half at most, and the share of the time that this saves.

    `border_us` is what it costs to convert the tensors behind each unit. A gain below MIN_GAIN is none.
    """
    shares = (np.cumsum(integer_us) - np.cumsum(float_us) - border_us) / np.sum(integer_us)
    shares = shares[: len(shares) // 2]
    best = int(np.argmax(shares >= SHORTER * shares.max()))
    return (best + 1, float(shares[best])) if shares[best] >= MIN_GAIN else (0, 0.0)


def unit_times(kernels: Kernels, places: Mapping[str, int], units: int) -> tuple[Floats, Floats]:
    """Return the time of each unit's kernels in microseconds, by medians, and the elements that its last one writes.

    The runtime names a kernel after a node or tensor, whose unit is in `places`, with further parts behind underscores;
    one with another name, such as a conversion, counts for the unit before.
    """
    calls, sizes = dict[str, list[int]](), dict[str, int]()
    for name, event in kernels:
        calls.setdefault(name, []).append(event["dur"])
        sizes[name] = int(event["args"]["output_size"])
    times, elements, unit, rounds = np.zeros(units), np.zeros(units), 0, min(map(len, calls.values()))
    for name, each in calls.items():
        known = name
        while known and known not in places:
            known = known.rpartition("_")[0]
        unit = places.get(known, unit)
        times[unit] += median(each) * len(each) / rounds
        elements[unit] = sizes[name] / np.dtype(np.float32).itemsize
    return times, elements


def _profiles(models: Sequence[Path], samples: NamedArrays) -> list[Kernels]:
    """Return the kernels that each model runs for one sample, called in turns in one thread."""
    with TemporaryDirectory() as folder:
        sessions = [open_session(m, threads=1, profile_to=Path(folder) / str(i)) for i, m in enumerate(models)]
        calls, start = [batched_inference(session, samples) for session in sessions], monotonic()
        for count in range(CALLS[1]):
            for call in calls if count < CALLS[0] or monotonic() - start < SECONDS else ():
                call.session.run(None, call.feed(0, call.batch(1)))
        return [kernel_events(read_events(Path(session.end_profiling()))) for session in sessions]
