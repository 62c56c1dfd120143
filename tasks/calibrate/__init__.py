"""Calibration: the ranges of all activations, found once for all static recipes, and whether they can be trusted."""

from pydantic import Field

from tasks.artifact import Artifact
from tasks.calibrate.audit import RangeChange, Severity, apart, changes, converged, covers, finite
from tasks.calibrate.prepare import activations, prepare
from tasks.calibrate.statistics import Collected, collect
from tasks.data.read import read_split
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import read_graph
from tasks.ranges import Method, Ranges
from tasks.report import Check, Report
from tasks.runtime.libraries import in_sessions_of_others
from tasks.signature import Signature
from tasks.workspace import Workspace


class CalibrateConfig(Frozen):
    """How many images the ranges are taken from, and when they count as settled."""

    images: int = Field(128, ge=1, description="calibration images to use, at the most")
    max_range_change: float = Field(
        0.1, gt=0, description="most that the second half of the images may move an end of a range, over its width"
    )
    strict: bool = Field(
        False, description="whether a calibration set that is too small or badly chosen stops the static recipes"
    )


class CalibrateFacts(Frozen):
    """What the ranges were taken from."""

    images: int = Field(description="calibration images that were used")
    tensors: int = Field(description="activations that have a range")
    methods: tuple[str, ...]
    changes: tuple[RangeChange, ...] = Field(description="how the ranges settled, by method and number of images")


def calibrate(
    config: CalibrateConfig,
    out: Workspace,
    *,
    model: Artifact,
    calibration: Artifact,
    test: Artifact,
    methods: tuple[Method, ...],
) -> Report[CalibrateFacts]:
    """Find the ranges of a model's activations by every method, and audit the calibration set.

    The artifacts are `prepared`, the model as the quantiser wants it, and `ranges`, a `tasks.ranges.Ranges`.

    Raises:
        StageError: when the model cannot be prepared, or does not take the images.
    """
    source, split = out.path(model), read_split(out.path(calibration))
    target = out.folder / "prepared.onnx"
    try:
        with in_sessions_of_others():  # ONNX Runtime's preparation opens one
            beside = prepare(source, target)
        values = activations(target)
    except Exception as error:  # the tools' own exceptions share no public base
        raise StageError(f"the model cannot be prepared for static quantisation: {error}") from error
    seen = collect(out, target, values, split, config.images, with_counts=any(method.counts for method in methods))
    after = {images: _ranges(seen, images, methods) for images in seen.after}
    ranges = after[seen.samples]
    moved = changes(after)
    severity: Severity = "error" if config.strict else "warning"
    coverage = covers(split, seen.samples, Signature.read(read_graph(source)).labels, severity)
    tensors = len(seen.after[seen.samples])  # none, where no node can be quantised: then there is nothing to converge
    checks: list[Check] = [
        finite(seen.non_finite),
        *([converged(moved, seen.samples, config.max_range_change, severity)] if tensors else []),
        *([coverage] if coverage else []),
        apart(split, seen.samples, read_split(out.path(test)), severity),
    ]
    facts = CalibrateFacts(
        images=seen.samples,
        tensors=tensors,
        methods=tuple(ranges.methods),
        changes=moved,
    )
    artifacts = {
        "prepared": out.keep(target, *beside),
        "ranges": out.keep(ranges.write(out.folder / "ranges.json")),
    }
    return Report(stage="calibrate", facts=facts, checks=tuple(checks), artifacts=artifacts)


def _ranges(seen: Collected, images: int, methods: tuple[Method, ...]) -> Ranges:
    found = {
        method.name: {
            tensor: (float(low), float(high))
            for tensor, statistics in seen.after[images].items()
            for low, high in [method.range_of(statistics)]
        }
        for method in methods
    }
    return Ranges(images=images, methods=found)
