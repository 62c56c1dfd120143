"""Calibration: compute the activation ranges once for all static recipes, and check the calibration set."""

import tempfile
from pathlib import Path

from pydantic import Field

from gauntlet.calibration.activation_statistics import ActivationStatistics, collect_statistics, open_calibrator
from gauntlet.calibration.preparation import prepare_for_quantization
from gauntlet.calibration.ranges import Method, Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds
from gauntlet.core.report import Check, Report, Severity
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionOrName
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import Split
from gauntlet.onnx_model.model_file import read_graph
from tasks.calibrate.calibration_set import (
    RangeChange,
    changes,
    class_coverage_check,
    convergence_check,
    finite_check,
    read_batches,
    test_overlap_check,
)

SMOOTHING_SAMPLES = 16
"""For functions, which installed packages bring, that change the prepared model so that its ranges get narrower."""


class CalibrateConfig(Frozen):
    """The number of calibration images, and when the ranges count as converged."""

    images: int = Field(128, ge=1, description="maximum number of calibration images")
    reader: FunctionOrName | None = Field(
        None, description="your own function that yields the inputs, instead of the calibration images"
    )
    strict: bool = Field(False, description="failed checks of the set stop the static recipes")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the reader."""
        return self.reader.files() if self.reader else ()


class CalibrateFacts(Facts):
    """What the ranges were computed from."""

    images: int = Field(description="calibration images that were used")
    tensors: int = Field(description="activations with a range")
    methods: tuple[str, ...]
    smoothed: int = Field(0, description="normalizations whose channels got alike in size; nothing changes in float")
    changes: tuple[RangeChange, ...] = Field(description="how the ranges converged, by method and number of images")


def calibrate(
    config: CalibrateConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    calibration: Artifact | None,
    test: Artifact,
    methods: tuple[Method, ...],
    files: tuple[object, ...] = (),
) -> Report[CalibrateFacts]:
    """Compute the ranges of a model's activations by every method, and check the calibration set.

    The artifacts are `prepared`, the preprocessed model for the quantizer, and `ranges`, a `Ranges` file. With a
    reader, `calibration` is not read, and the result is not reused, because nobody knows what else the reader reads.
    `files` are the user's (`CalibrateConfig.files`), an argument so that their content is part of the cache key. Raises
    StageError when the model cannot be preprocessed, or does not accept the images.
    """
    model_path = workspace.path(model)
    proto = read_graph(model_path)
    signature = Signature.read(proto)
    public = ({value.name for value in values} for values in (proto.graph.input, proto.graph.output))
    split = _samples(config, workspace, signature, calibration)
    prepared, first = workspace.folder / "prepared.onnx", split.take(slice(0, SMOOTHING_SAMPLES))
    with tempfile.TemporaryDirectory(dir=workspace.folder) as folder:
        try:
            data_files = prepare_for_quantization(model_path, prepared)
            smoothed = sum(smooth(prepared, first) for smooth in kinds("smoothing").values())
            calibrator = open_calibrator(prepared, Path(folder))
        except Exception as error:  # the tools' own exceptions share no public base
            raise StageError(f"the model cannot be prepared for static quantization: {error}") from error
        with_counts = any(method.counts for method in methods)
        statistics = collect_statistics(workspace, calibrator, split, config.images, with_counts=with_counts)
    ranges_after = {images: _ranges(statistics, images, methods) for images in statistics.after}
    ranges = ranges_after[statistics.samples]
    facts = CalibrateFacts(
        images=statistics.samples,
        tensors=len(statistics.after[statistics.samples]),
        methods=tuple(ranges.methods),
        smoothed=smoothed,
        changes=changes(ranges_after),
    )
    set_checks = _set_checks(config, facts, split, signature.labels, read_split(workspace.path(test)))
    artifacts = {
        "prepared": workspace.store_file(prepared, *data_files),
        "ranges": workspace.store_file(ranges.write(workspace.folder / "ranges.json")),
    }
    checks = (finite_check(statistics.non_finite, *public), *set_checks)
    return Report(facts=facts, checks=checks, artifacts=artifacts, unkeyed=config.reader is not None)


def _samples(
    config: CalibrateConfig, workspace: Workspace, signature: Signature, calibration: Artifact | None
) -> Split:
    """Return the samples to calibrate with; there is a reader where there is no split."""
    if config.reader is not None:
        return read_batches(config.reader, signature, config.images)
    assert calibration is not None
    return read_split(workspace.path(calibration))


def _set_checks(
    config: CalibrateConfig, facts: CalibrateFacts, split: Split, labels: tuple[str, ...], test: Split
) -> tuple[Check, ...]:
    severity: Severity = "error" if config.strict else "warning"
    checks = [class_coverage_check(split, facts.images, labels, severity)]
    if facts.tensors:  # a model without a node to quantize has no ranges that could converge
        checks.insert(0, convergence_check(facts.changes, facts.images, len(split), severity))
    return (*filter(None, checks), test_overlap_check(split, facts.images, test, severity))


def _ranges(collected: ActivationStatistics, images: int, methods: tuple[Method, ...]) -> Ranges:
    tensors = collected.after[images].items()
    ranges = {method.name: {name: method.range_of(statistics) for name, statistics in tensors} for method in methods}
    return Ranges.model_validate({"images": images, "methods": ranges})
