"""Statistics of every activation, collected in memory that does not grow with the number of samples.

A first pass over the samples finds the range of each tensor; methods that need histograms add a second pass, which
counts values over exactly these ranges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCalibrater
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from gauntlet.calibration.histogram import Ends, EndsCollector, FixedRangeCollector, TensorStatistics
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split
from gauntlet.onnx_model.model_file import is_large_file
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

BATCH = 8
CHUNK_BYTES = 256_000_000
"""Limit on the activations of one call, all tensors together. A single sample is always allowed."""


@dataclass(frozen=True)
class ActivationStatistics:
    """The statistics of the tensors whose values are all finite, after about half of the samples and after all."""

    samples: int
    after: Mapping[int, Mapping[str, TensorStatistics]]
    non_finite: tuple[str, ...]


def open_calibrator(prepared: Path, folder: Path) -> HistogramCalibrater:
    """Return ONNX Runtime's calibrator for the tensors that `quantize_static` quantizes.

    `folder` holds the model with its activations as outputs as long as the calibrator is used.
    """
    calibrator = HistogramCalibrater(
        prepared,
        [*{*QLinearOpsRegistry, *QDQRegistry}],
        str(folder / "augmented.onnx"),
        use_external_data_format=is_large_file(prepared),
    )
    calibrator.augment_graph()
    calibrator.infer_session = open_session(folder / "augmented.onnx", level="off")  # ORT's own lacks custom operators
    return calibrator


def collect_statistics(
    workspace: Workspace, calibrator: HistogramCalibrater, split: Split, limit: int, *, with_counts: bool
) -> ActivationStatistics:
    """Run the first `limit` samples, or all there are, through the model: once, or twice for histograms.

    Raises:
        StageError: when the samples do not fit the model, or the runtime fails.
    """
    calls, passes = _Calls.plan(calibrator, split, limit), 1 + with_counts
    ends: dict[int, dict[str, Ends]] = _run(workspace, calls, EndsCollector(), 0, passes)
    last = ends[calls.samples]
    bad = tuple(name for name in calls.tensors if name in last and not np.isfinite(last[name]).all())
    good = [name for name in calls.tensors if name not in bad]
    counts: dict[int, dict[str, Any]] = {}
    if with_counts:
        collector = FixedRangeCollector({name: last[name] for name in good if name in last})
        counts = _run(workspace, calls, collector, 1, passes)
    empty = (np.float32(0), np.float32(0))  # of a tensor without values so far
    after = {
        seen: {name: TensorStatistics(*some.get(name, empty), counts.get(seen, {}).get(name)) for name in good}
        for seen, some in ends.items()
    }
    return ActivationStatistics(calls.samples, after, bad)


@dataclass(frozen=True)
class _Calls:
    """The calls of the calibrator's session that cover the samples, in their order."""

    session: Any
    tensors: list[str]
    split: Split
    samples: int
    batch: int

    @classmethod
    def plan(cls, calibrator: HistogramCalibrater, split: Split, limit: int) -> "_Calls":
        """Return at least four calls of at most `BATCH` samples and `CHUNK_BYTES` each, where the model allows that."""
        session, first = calibrator.infer_session, split.take(slice(0, 1))
        samples, smallest = min(limit, len(split)), batched_inference(session, first).batch(1)
        if samples >= smallest:  # copies that fill up the last call of a fixed batch would be counted as samples
            samples -= samples % smallest
        single = cls(session, _float_tensors(calibrator), split, samples, smallest)
        values = sum(array.size for array in single.activations(0).values())
        batch = max(1, min(BATCH, CHUNK_BYTES * smallest // max(1, 4 * values), samples // 4))
        return cls(session, single.tensors, split, samples, batched_inference(session, first).batch(batch))

    def activations(self, start: int) -> NamedArrays:
        """Return the activations of the call whose first sample is `start`."""
        samples = self.split.take(slice(start, min(start + self.batch, self.samples)))
        feed = batched_inference(self.session, samples).feed(0, self.batch)
        try:  # without names, ONNX Runtime returns all outputs, none of which is to be calibrated
            return dict(zip(self.tensors, self.session.run(self.tensors, feed), strict=bool(self.tensors)))
        except Exception as error:  # the runtime's own exceptions share no public base
            raise StageError(f"ONNX Runtime fails on a calibration batch: {one_line(error)}") from error


def _float_tensors(calibrator: HistogramCalibrater) -> list[str]:
    """Return the float32 tensors among those that are calibrated, in the order of the graph."""
    graph = calibrator.model.graph
    order = [*(i.name for i in graph.input), *(name for node in graph.node for name in node.output)]
    floats = {output.name for output in calibrator.infer_session.get_outputs() if output.type == "tensor(float)"}
    return [name for name in order if name in calibrator.tensors_to_calibrate & floats]


def _run(
    workspace: Workspace, calls: _Calls, collector: EndsCollector | FixedRangeCollector, done: int, passes: int
) -> dict[int, dict[str, Any]]:
    """Pass all samples to a collector; return its results after about half of them, and after all."""
    results: dict[int, dict[str, Any]] = {}
    for start in range(0, calls.samples, calls.batch):
        collector.collect(calls.activations(start))  # freed before the next call
        seen = min(start + calls.batch, calls.samples)
        if seen == calls.samples or (not results and 2 * seen >= calls.samples):
            results[seen] = collector.result()
        workspace.progress(done * calls.samples + seen, passes * calls.samples, "images")
    return results
