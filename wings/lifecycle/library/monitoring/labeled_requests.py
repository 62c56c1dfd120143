"""Logged requests whose inputs were kept and whose labels came: what a model can be trained and judged with."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays, write_arrays
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import LABELS, array_name
from gauntlet.request_log.log_format import ids_of
from wings.lifecycle.library.log_reader import Feedback, LoggedRequest, RequestLogReader, class_numbers

NEAR = 0.05
"""Distance of near copies, as a share of what is usual between two samples."""
MIN_VALUES = 16
"""Samples of fewer numbers are often alike by chance: only equal ones count as copies."""
DIMENSIONS, CHUNK = 32, 4096
"""Of the projection that distances are computed in, and values that are projected at once."""
ABSURD = 1e30
"""Larger values count as this."""
Labels = dict[str, list[tuple[int, ...]]]


@dataclass(frozen=True)
class LabeledRequests:
    """The labeled samples of a version, in the order of their requests."""

    inputs: NamedArrays
    """As the model took them, each of shape (samples, ...)."""
    labels: npt.NDArray[np.int64]
    """Classes, shape (samples,)."""
    held_back: npt.NDArray[np.bool_]
    """Which samples are not to be trained on, shape (samples,)."""
    copies: int
    """Samples that are left out, because they are near copies of one that is held back."""
    requests: int
    """All requests of the version in the log."""
    labeled: int
    """Those of them that have labels."""
    usable: int
    """Those that also have inputs, a label for each sample, and an id of their own."""

    def save(self, path: Path, chosen: npt.NDArray[np.bool_]) -> None:
        """Write some samples to an `.npz` file: the inputs by name, and `labels`."""
        inputs = {array_name(name): array[chosen] for name, array in self.inputs.items()}
        write_arrays(path, inputs | {LABELS: self.labels[chosen]})


def read_labeled_requests(
    log: RequestLogReader, version: str, signature: Signature, held_back: float
) -> LabeledRequests:
    """Return the labeled samples of a version; a share of the requests is held back, the latest ones.

    What one client sends in a row is so on one side. Samples that are near copies of one that is held back, such as
    frames of the same scene, are left out.

    Raises:
        StageError: when a file of the log is damaged.
    """
    labels, seen = _labels(log.feedback(), signature), Counter[str]()
    requests = labeled = 0
    used: list[LoggedRequest] = []
    for request in log.requests(version):
        requests += 1
        seen.update(ids_of(request.request_id))
        classes = _classes(request, labels)
        labeled += classes is not None
        if classes is not None and _fits(request.inputs, classes, signature):
            used.append(request)
    # Under an id of several requests, whose labels these are is unknown.
    used = [request for request in used if seen[_labeled_as(request, labels)] == 1]
    inputs = {spec.name: _joined(used, spec.name) for spec in signature.inputs} if used else {}
    classes_of = [_classes(request, labels) or () for request in used]
    counts = [len(classes) for classes in classes_of]
    aside = np.repeat(np.arange(len(used)) >= round((1 - held_back) * len(used)), counts)
    truth = np.array([label for classes in classes_of for label in classes], np.int64)
    kept = ~_copies(inputs, aside)
    inputs = {name: array[kept] for name, array in inputs.items()}
    return LabeledRequests(inputs, truth[kept], aside[kept], int((~kept).sum()), requests, labeled, len(used))


def _labels(feedback: Iterable[Feedback], signature: Signature) -> Labels:
    """Return the labels by request, in the order in which they came."""
    labels: Labels = {}
    for entry in feedback:
        labels.setdefault(entry.request_id, []).append(class_numbers(entry.labels, signature.labels))
    return labels


def _labeled_as(request: LoggedRequest, labels: Labels) -> str:
    """Return the id under which a request has labels, or its own."""
    return next((name for name in ids_of(request.request_id) if name in labels), request.request_id)


def _classes(request: LoggedRequest, labels: Labels) -> tuple[int, ...] | None:
    """Return the first labels that are one for each sample, as in a monitor; else the first; None without any."""
    known = labels.get(_labeled_as(request, labels), [])
    samples = next((len(array) for array in (request.inputs or {}).values() if array.ndim), 0)
    return next((classes for classes in known if len(classes) == samples), known[0] if known else None)


def _fits(inputs: NamedArrays | None, labels: tuple[int, ...], signature: Signature) -> bool:
    """Tell whether a request has every input of the model and a known class for each of its samples."""
    if inputs is None or not all(0 <= label < len(signature.labels) for label in labels):
        return False
    arrays = [inputs.get(spec.name) for spec in signature.inputs]
    return all(array is not None and array.ndim and len(array) == len(labels) for array in arrays)


def _joined(requests: list[LoggedRequest], name: str) -> Array:
    return np.concatenate([request.inputs[name] for request in requests if request.inputs is not None])


def _copies(inputs: NamedArrays, held_back: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which samples are near copies of one that is held back and stays."""
    flat = [array.reshape(len(array), -1) for array in inputs.values()]
    copies = np.zeros(len(held_back), np.bool_)
    if sum(array.shape[1] for array in flat) < MIN_VALUES or any(array.dtype.kind not in "fiub" for array in flat):
        rows = [b"".join(values) for values in zip(*([row.tobytes() for row in array] for array in flat), strict=True)]
        aside = {rows[i] for i in np.flatnonzero(held_back)}
        return np.array([row in aside for row in rows], np.bool_) & ~held_back
    from scipy.spatial import KDTree

    points = _projected(inputs)
    tree = KDTree(points)
    for sample in np.flatnonzero(held_back).tolist():
        if not copies[sample]:
            copies[tree.query_ball_point(points[sample], NEAR)] = True
            copies[sample] = False
    return copies


def _projected(inputs: NamedArrays) -> Floats:
    """Return samples as points, shape (n, DIMENSIONS), usually 1 apart: a projection by random signs.

    Each column of a table has the same weight, and so does each value of an image. Scales are medians, which a few
    samples with absurd values do not change.
    """
    random, points = np.random.default_rng(0), np.zeros(1)
    for array in inputs.values():
        flat = array.reshape(len(array), -1)
        for start in range(0, flat.shape[1], CHUNK):
            part = np.clip(np.nan_to_num(flat[:, start : start + CHUNK].astype(np.float64)), -ABSURD, ABSURD)
            part = part - np.median(part, axis=0)
            if array.ndim == 2:
                usual, spread = np.median(np.abs(part), axis=0), part.std(axis=0)  # 0 where most values are the same
                part /= np.where(usual > 0, usual, np.where(spread > 0, spread, 1))
            points = points + part @ random.choice([-1.0, 1.0], (part.shape[1], DIMENSIONS))
    usual_distance = np.sqrt(2) * np.median(np.linalg.norm(points - np.median(points, axis=0), axis=1))
    return np.asarray(points / (usual_distance or 1))
