"""What every activation's values are like, in memory that does not grow with the number of samples.

ONNX Runtime's histogram calibrator runs the network, one chunk of samples at a time, and hands the activations to a
collector: in a first pass to one of the lowest and highest values, and where a method needs counts, in a second pass to
one of histograms over exactly these ranges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCalibrater
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from gauntlet.calibration.data_reader import CalibrationDataReader, OneChunk
from gauntlet.calibration.histogram import Counts, Ends, EndsCollector, FixedRangeCollector, Floats, TensorStatistics
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split
from gauntlet.onnx_model.graph import one_line
from gauntlet.onnx_model.model_file import is_large_file
from gauntlet.runtime.session import open_session

CHUNK_BYTES = 256_000_000
"""Activations of one chunk, all tensors together. A single sample is always allowed, however large."""


@dataclass(frozen=True)
class ActivationStatistics:
    """The statistics of the tensors that held only numbers, after about half of the samples and after all."""

    samples: int
    after: Mapping[int, Mapping[str, TensorStatistics]]
    non_finite: tuple[str, ...]


def open_calibrator(prepared: Path, folder: Path) -> HistogramCalibrater:
    """Return ONNX Runtime's calibrator for the tensors that `quantize_static` would look for.

    Args:
        prepared: the model.
        folder: where the model with its activations as outputs is kept, as long as the calibrator is used.
    """
    made = HistogramCalibrater(
        prepared,
        [*{*QLinearOpsRegistry, *QDQRegistry}],
        str(folder / "augmented.onnx"),
        use_external_data_format=is_large_file(prepared),
    )
    made.augment_graph()
    made.infer_session = open_session(folder / "augmented.onnx", level="off")  # ORT's own has no libraries of operators
    return made


def collect_statistics(
    workspace: Workspace, calibrator: HistogramCalibrater, split: Split, wanted: int, *, with_counts: bool
) -> ActivationStatistics:
    """Run the samples through the model, once, or twice for histograms.

    Args:
        workspace: where progress goes.
        calibrator: of the model.
        split: the samples.
        wanted: how many of them, at most.
        with_counts: whether to make histograms.

    Raises:
        StageError: when the samples do not fit the model, or the runtime fails.
    """
    single, size = CalibrationDataReader.of(calibrator.infer_session, split, wanted), EndsCollector()
    _collect(calibrator, size, next(iter(single))[0])  # how many values a call has
    feeds = single.in_chunks(CHUNK_BYTES * single.batch // max(1, 4 * size.values))
    passes = 1 + with_counts
    ends = _run(workspace, calibrator, EndsCollector(), feeds, 0, passes)
    tensors, last = _float_tensors(calibrator), ends[feeds.samples]
    bad = tuple(name for name in tensors if name in last and not np.isfinite(last[name]).all())
    good = [name for name in tensors if name not in bad]
    counts: dict[int, dict[str, Any]] = {}
    if with_counts:
        collector = FixedRangeCollector({name: last[name] for name in good if name in last})
        counts = _run(workspace, calibrator, collector, feeds, 1, passes)
    after = {seen: _statistics(good, some, counts.get(seen, {})) for seen, some in ends.items()}
    return ActivationStatistics(feeds.samples, after, bad)


def _statistics(
    names: list[str], ends: Mapping[str, Ends], histograms: Mapping[str, tuple[Counts, Floats]]
) -> dict[str, TensorStatistics]:
    """Return the statistics of each tensor; zeros where it had no value yet."""
    nothing = np.float32(0)
    return {
        name: TensorStatistics(*ends[name], histograms.get(name))
        if name in ends
        else TensorStatistics(nothing, nothing)
        for name in names
    }


def _float_tensors(calibrator: HistogramCalibrater) -> list[str]:
    """Return the float32 tensors among those that are calibrated, in the order of the graph."""
    graph = calibrator.model.graph
    order = [*(i.name for i in graph.input), *(name for node in graph.node for name in node.output)]
    floats = {output.name for output in calibrator.infer_session.get_outputs() if output.type == "tensor(float)"}
    return [name for name in order if name in calibrator.tensors_to_calibrate & floats]


def _run(
    workspace: Workspace,
    calibrator: HistogramCalibrater,
    collector: Any,
    feeds: CalibrationDataReader,
    done: int,
    passes: int,
) -> dict[int, dict[str, Any]]:
    """Give all samples to a collector; return what it has found after about half of them, and after all."""
    found: dict[int, dict[str, Any]] = {}
    for feed, seen in feeds:
        _collect(calibrator, collector, feed)
        if seen == feeds.samples or (not found and 2 * seen >= feeds.samples):
            found[seen] = collector.compute_collection_result()
        workspace.progress(done * feeds.samples + seen, passes * feeds.samples, "images")
    return found


def _collect(calibrator: HistogramCalibrater, collector: Any, feed: NamedArrays) -> None:
    calibrator.collector = collector
    try:
        calibrator.collect_data(OneChunk(feed))
    except Exception as error:  # the runtime's own exceptions share no public base
        raise StageError(f"ONNX Runtime fails on a calibration batch: {one_line(error)}") from error
