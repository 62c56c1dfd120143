"""Logged requests whose inputs were kept and whose labels came: what a model can be trained and judged with."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.request_log.log_format import is_in_share
from wings.lifecycle.library.log_reader import Feedback, LoggedRequest, RequestLogReader

SPLIT = b"held back"
"""Makes the digests differ from those by which a server chooses the requests that it logs."""


@dataclass(frozen=True)
class LabeledRequests:
    """The labeled samples of a version, in the order of their requests."""

    inputs: NamedArrays
    """As the model took them, each of shape (samples, ...)."""
    labels: npt.NDArray[np.int64]
    """Classes, shape (samples,)."""
    held_back: npt.NDArray[np.bool_]
    """Which samples are not to be trained on, shape (samples,)."""
    requests: int
    """All requests of the version in the log."""
    labeled: int
    """Those of them that have labels."""
    usable: int
    """Those that also have inputs, a label for each sample, and an id of their own."""

    def save(self, path: Path, chosen: npt.NDArray[np.bool_]) -> None:
        """Write some samples to an `.npz` file: the inputs by name, and `labels`."""
        inputs = {name: array[chosen] for name, array in self.inputs.items()}
        np.savez(path, allow_pickle=False, labels=self.labels[chosen], **inputs)


def read_labeled_requests(
    log: RequestLogReader, version: str, signature: Signature, held_back: float
) -> LabeledRequests:
    """Return the labeled samples of a version; a share of the requests is held back, by their ids.

    The same request is on the same side in every log and at every time. A sample that is trained on and equals one
    that is held back is left out.

    Raises:
        StageError: when a file of the log is damaged.
    """
    labels, seen = _labels(log.feedback()), Counter[str]()
    requests = labeled = 0
    used: list[LoggedRequest] = []
    for request in log.requests(version):
        requests += 1
        seen[request.request_id] += 1
        classes = labels.get(request.request_id)
        labeled += classes is not None
        if classes is not None and _fits(request.inputs, classes, signature):
            used.append(request)
    used = [
        request for request in used if seen[request.request_id] == 1
    ]  # of others, whose labels these are is unknown
    inputs = {spec.name: _joined(used, spec.name) for spec in signature.inputs} if used else {}
    counts = [len(labels[request.request_id]) for request in used]
    aside = np.repeat([is_held_back(request.request_id, held_back) for request in used], counts).astype(np.bool_)
    truth = np.array([label for request in used for label in labels[request.request_id]], np.int64)
    kept = aside | ~_seen(inputs, aside)
    inputs = {name: array[kept] for name, array in inputs.items()}
    return LabeledRequests(inputs, truth[kept], aside[kept], requests, labeled, len(used))


def is_held_back(request_id: str, share: float) -> bool:
    """Return whether a request is held back, from its id alone."""
    return is_in_share(request_id, share, SPLIT)


def _labels(feedback: Iterable[Feedback]) -> dict[str, tuple[int, ...]]:
    """Return the labels by request; the first ones count, as in a monitor."""
    labels: dict[str, tuple[int, ...]] = {}
    for entry in feedback:
        labels.setdefault(entry.request_id, entry.labels)
    return labels


def _fits(inputs: NamedArrays | None, labels: tuple[int, ...], signature: Signature) -> bool:
    """Tell whether a request has every input of the model and a known class for each of its samples."""
    if inputs is None or not all(0 <= label < len(signature.labels) for label in labels):
        return False
    arrays = [inputs.get(spec.name) for spec in signature.inputs]
    return all(array is not None and array.ndim and len(array) == len(labels) for array in arrays)


def _joined(requests: list[LoggedRequest], name: str) -> Array:
    return np.concatenate([request.inputs[name] for request in requests if request.inputs is not None])


def _seen(inputs: NamedArrays, held_back: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which samples equal one that is held back."""
    rows = [
        hashlib.sha256(b"".join(array[i].tobytes() for array in inputs.values())).digest()
        for i in range(len(held_back))
    ]
    aside = {rows[i] for i in np.flatnonzero(held_back)}
    return np.array([row in aside for row in rows], np.bool_)
