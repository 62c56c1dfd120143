"""What a monitor has seen: features of every sample, labels and losses of some, and outcomes of requests, in order.

The server's log forgets its first requests; the history keeps a few numbers of each, so that a look later on has the
same evidence for the first samples as a look before.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import NPZ_ERRORS
from gauntlet.request_log.input_statistics import input_names, input_statistics
from gauntlet.request_log.log_format import REFUSED, ids_of
from wings.lifecycle.library.log_reader import Feedback, LoggedRequest, Outcome, RequestLogReader, class_numbers
from wings.lifecycle.library.monitoring.embeddings import EmbeddingReference
from wings.lifecycle.library.monitoring.features import PREDICTED, are_broken, feature_names, output_features

MAX_SAMPLES = 1_000_000
"""More are not tested, so that a look takes seconds."""
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MonitorHistory:
    """Everything that the tests need; arrays have one entry per sample unless they say otherwise.

    `features`, `times`, `ids`, `places` and `broken` are of samples with outputs; `outcome_times`, `milliseconds` and
    `failed` and `refused` of all requests; `losses`, `labels` and `labeled` of labels, in the order in which they came.
    """

    features: Floats
    """Shape (samples, features); NaN for statistics that the log did not keep."""
    times: Floats
    """Seconds since 1970."""
    ids: npt.NDArray[np.bytes_]
    places: Indices
    """Shape (samples, 3): file and row of the request, and the sample in it."""
    broken: Floats
    """1 where an output is not finite although the input is."""
    outcome_times: Floats
    """Seconds since 1970, shape (requests,)."""
    milliseconds: Floats
    """From arrival to outputs or failure, shape (requests,)."""
    failed: Floats
    """1 for a request without outputs, shape (requests,)."""
    refused: Floats
    """1 for those of them whose inputs the runtime refused, shape (requests,)."""
    losses: Floats
    """1 where the prediction was wrong, shape (labeled,)."""
    labels: Indices
    """The right classes, shape (labeled,)."""
    labeled: Indices
    """Their samples, shape (labeled,)."""
    label_times: Floats
    """When the labels came, in seconds since 1970, shape (labeled,); 0 where an older server did not log it."""
    read: Indices
    """Where the next look continues, shape (3, 2): requests, feedback and outcomes, each file and row."""
    skipped: int = 0
    """Requests whose arrays do not have one entry per sample."""
    ignored: int = 0
    """Labels of requests that are not this version's, were labeled before, share an id with another request, or have
    another number of samples."""
    unlabeled: int = 0
    """Samples without a label before the last whose label may be judged; as what follows, of `judged_labels`."""
    waiting: int = 0
    """Labels that may not be judged yet."""
    late: int = 0
    """Labels that came too late to be judged."""

    @classmethod
    def empty(cls, features: int) -> "MonitorHistory":
        """Return the history of a monitor that has not looked yet."""
        names = ["times", "broken", "outcome_times", "milliseconds", "failed", "refused", "losses", "label_times"]
        numbers: dict[str, Any] = dict.fromkeys(names, np.empty(0))
        return cls(
            features=np.empty((0, features)),
            ids=np.empty(0, "S1"),
            places=np.empty((0, 3), np.int64),
            labels=np.empty(0, np.int64),
            labeled=np.empty(0, np.int64),
            read=np.zeros((3, 2), np.int64),
            **numbers,
        )

    @classmethod
    def at_end(cls, features: int, log: RequestLogReader) -> "MonitorHistory":
        """Return a history that begins with what is logged from now on."""
        read = np.array([log.end("request"), log.end("feedback"), log.end("request")])
        return replace(cls.empty(features), read=read)

    @classmethod
    def load(cls, path: Path, version: str) -> "MonitorHistory | None":
        """Read what `save` wrote; None where there is nothing of this version; `StageError` when it is damaged."""
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                counts = file["counts"].tolist()
                if str(file.get("version", version)) != version:  # an older release did not write it
                    return None
                arrays = {name: file[name] for name in file.files if name not in ("counts", "version")}
            arrays.setdefault("label_times", np.zeros(len(arrays["labeled"])))  # an older version did not write it
            return cls(**arrays, skipped=counts[0], ignored=counts[1])
        except NPZ_ERRORS as error:  # the latter where another version wrote other arrays
            fix = "remove it, and the monitor begins with what the log still has"
            raise StageError(f"{path}: it cannot be read: {error}. Fix: {fix}") from error

    def save(self, path: Path, version: str) -> None:
        """Write one `.npz` file; a reader sees the old one or the new one."""
        temporary = path.with_name(f".{uuid.uuid4().hex}.npz")
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        try:
            arrays |= {"counts": np.array([self.skipped, self.ignored]), "version": np.array(version)}
            np.savez(temporary, allow_pickle=False, **arrays)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def updated(
        self,
        log: RequestLogReader,
        version: str,
        signature: Signature,
        finite: Sequence[str] = (),
        embedding: EmbeddingReference | None = None,
    ) -> "MonitorHistory":
        """Return the history with what was logged since; `finite` names the outputs that have to be finite.

        With `embedding`, the last feature is the distance of the samples' embeddings.
        """
        requests, labels, outcomes = ((int(file), int(row)) for file, row in self.read)
        feedback = list(log.feedback(labels))  # first: the requests that are read next have all that these are of
        with_requests = self._with_requests(log.requests(version, requests), signature, finite, embedding)
        return with_requests._with_outcomes(log.outcomes(version, outcomes))._with_feedback(feedback, signature)

    def _with_requests(
        self,
        requests: Iterable[LoggedRequest],
        signature: Signature,
        finite: Sequence[str],
        embedding: EmbeddingReference | None,
    ) -> "MonitorHistory":
        features, times, ids, places = [self.features], [self.times], [self.ids], [self.places]
        broken, read, skipped, samples = [self.broken], self.read.copy(), self.skipped, len(self.times)
        for request in requests:
            if samples >= MAX_SAMPLES:
                break
            read[0] = request.place
            values = _features(request, signature, embedding)
            if values is None:
                skipped += 1
                continue
            count = len(values)
            samples += count
            features.append(values)
            broken.append(are_broken(request.outputs, request.inputs, request.statistics, finite, count))
            times.append(np.full(count, request.time))
            ids.append(np.full(count, request.request_id.encode()))
            places.append(np.array([(*request.place, sample) for sample in range(count)], np.int64).reshape(-1, 3))
        return replace(
            self,
            features=np.concatenate(features),
            times=np.concatenate(times),
            ids=np.concatenate(ids),
            places=np.concatenate(places),
            broken=np.concatenate(broken),
            read=read,
            skipped=skipped,
        )

    def _with_outcomes(self, outcomes: Iterable[Outcome]) -> "MonitorHistory":
        ended = list(islice(outcomes, max(0, MAX_SAMPLES - len(self.failed))))
        if not ended:
            return self
        read = self.read.copy()
        read[2] = ended[-1].place
        return replace(
            self,
            outcome_times=np.append(self.outcome_times, [outcome.time for outcome in ended]),
            milliseconds=np.append(self.milliseconds, [outcome.milliseconds for outcome in ended]),
            failed=np.append(self.failed, [float(outcome.failure is not None) for outcome in ended]),
            refused=np.append(self.refused, [float(outcome.failure == REFUSED) for outcome in ended]),
            read=read,
        )

    def _with_feedback(self, feedback: Iterable[Feedback], signature: Signature) -> "MonitorHistory":
        names = feature_names(signature)
        if PREDICTED not in names:
            return self
        predicted = self.features[:, names.index(PREDICTED)]
        known, labeled, labels = self._requests_by_id(), [*self.labeled.tolist()], [*self.labels.tolist()]
        done, read, ignored, times = set(labeled), self.read.copy(), self.ignored, self.label_times.tolist()
        for entry in feedback:
            read[1] = entry.place
            samples = known.get(entry.request_id, range(0))
            if len(samples) != len(entry.labels) or samples.start in done:
                ignored += 1
                continue
            done.update(samples)
            labeled += samples
            labels += class_numbers(entry.labels, signature.labels)
            times += [entry.time] * len(samples)
        which, truth = np.array(labeled, np.int64), np.array(labels, np.int64)
        losses = (predicted[which] != truth).astype(np.float64)
        came = np.array(times, np.float64)
        return replace(self, labeled=which, labels=truth, losses=losses, label_times=came, read=read, ignored=ignored)

    def _requests_by_id(self) -> dict[str, range]:
        """Return the samples of each request; none where several have the id, so that its labels may be any one's."""
        starts = np.flatnonzero(self.places[:, 2] == 0)
        ends = np.append(starts, len(self.places))[1:].tolist()
        names = [ids_of(key.decode()) for key in self.ids[starts].tolist()]
        times = Counter(chain.from_iterable(names))
        samples = zip(names, map(range, starts.tolist(), ends), strict=True)
        return {name: where for keys, where in samples for name in keys if times[name] == 1}


def _features(request: LoggedRequest, signature: Signature, embedding: EmbeddingReference | None) -> Floats | None:
    """Return the features of a request's samples, shape (n, k); None where arrays do not have one entry per sample."""
    try:
        outputs = output_features(request.outputs, signature)
        statistics, missing = request.statistics, np.full((len(outputs), len(input_names(signature))), np.nan)
        if statistics is None and request.inputs is not None:
            statistics = input_statistics(request.inputs, signature)
        columns = [missing if statistics is None else _known(statistics), _known(outputs)]
        if embedding is not None:
            unknown = np.full(len(outputs), np.nan)
            far = unknown if request.embedding is None else embedding.distances(request.embedding)
            columns.append(far[:, None])
        return np.concatenate(columns, axis=1)
    except (KeyError, ValueError, IndexError, TypeError):  # another number of samples or axes
        return None


def _known(values: Array) -> Floats:
    """Return values in which NaN is the smallest of all, so that it is not taken for one that the log lacks."""
    return np.where(np.isnan(values), -np.inf, values)
