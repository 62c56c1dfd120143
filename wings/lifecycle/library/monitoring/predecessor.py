"""Is a champion proven worse than the version before it? Both predict the same labeled requests.

The previous champion runs on the inputs of every labeled sample, where the log has them (`--log-inputs all`). The
paired difference of the two losses, -1, 0 or 1, is mapped to 0 to 1, and bets that its mean exceeds what may be lost
are placed after every label (`wings.lifecycle.library.monitoring.risk_evidence`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import Floats, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import NPZ_ERRORS
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification
from gauntlet.request_log.log_format import VERSION_DIGITS
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.features import are_broken
from wings.lifecycle.library.monitoring.martingale import Wealth
from wings.lifecycle.library.monitoring.monitor_history import Indices, MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, PreviousResult
from wings.lifecycle.library.monitoring.risk_evidence import labeled_wealth
from wings.lifecycle.library.monitoring.service_evidence import harms, service_tests

DEFAULT_DROP = 0.01
NO_CLASS = -1


@dataclass(frozen=True)
class Predecessor:
    """The champion before, and what its successor may lose."""

    bundle: Bundle
    since: float
    """When the successor was promoted, in seconds since 1970: what was asked before does not count."""
    max_accuracy_drop: float = DEFAULT_DROP

    def compare(
        self, champion: Signature, history: MonitorHistory, log: RequestLogReader, limits: MonitorLimits, folder: Path
    ) -> PreviousResult:
        """Return whether harm is proven; the predecessor's losses are kept in the folder of the monitor's history.

        Half of the false alarms is the predictions', the rest is shared by the tests of the service.
        """
        own, level = self._without_shared_faults(champion, history, log), limits.false_alarms / 2
        tests = service_tests(own, limits, self.since)
        service = tuple(test.result(level / len(tests)) for test in tests)
        drop = self.max_accuracy_drop if limits.max_accuracy_drop is None else limits.max_accuracy_drop
        result = PreviousResult(
            digest=self.bundle.digest,
            since=datetime.fromtimestamp(self.since, UTC).isoformat(timespec="milliseconds"),
            limit=drop,
            threshold=float(-np.log10(level)),
            note=self._incomparable(champion),
            service=service,
        )
        if not result.note:
            result = self._with_losses(result, history, self._losses(champion, history, log, folder), level)
        proven = [] if result.alarm_at is None else [self._proof(result)]
        return result.replace(harm=(*proven, *harms(service)))

    def _without_shared_faults(
        self, champion: Signature, history: MonitorHistory, log: RequestLogReader
    ) -> MonitorHistory:
        """Return the history in which outputs count as broken only where the predecessor's are finite.

        It is tried on the logged inputs; where the log has none, as of requests that the runtime refused, nothing says
        that it would do better.
        """
        suspects = np.flatnonzero((history.broken > 0) & (history.times >= self.since))
        broken = history.broken.copy()
        broken[suspects] = 0
        if len(suspects) and not _other_inputs(self.bundle.contract.signature, champion):
            predictor, names = Predictor(self.bundle, threads=1), finite_outputs(self.bundle)
            for file, row in np.unique(history.places[suspects, :2], axis=0).tolist():
                chosen = suspects[(history.places[suspects, :2] == (file, row)).all(axis=1)]
                broken[chosen] = _finite_samples(predictor, log.inputs((file, row)), names, history.places[chosen, 2])
        return replace(history, broken=broken, failed=history.failed - history.refused)

    def _with_losses(
        self, result: PreviousResult, history: MonitorHistory, before: Floats, level: float
    ) -> PreviousResult:
        since_promotion = history.times[history.labeled] >= self.since
        known = since_promotion & np.isfinite(before)
        evidence = paired_wealth(history.losses[known], before[known], result.limit)
        return result.replace(
            compared=int(known.sum()),
            wrong=int(history.losses[known].sum()),
            previous_wrong=int(before[known].sum()),
            left_out=int((since_promotion & ~known).sum()),
            evidence=max(0.0, float(evidence.log.max(initial=0) / np.log(10))),
            alarm_at=evidence.first_above(level),
        )

    def _proof(self, result: PreviousResult) -> str:
        previous = f"{self.bundle.digest[:VERSION_DIGITS]}, the champion before"
        counted = f"{result.wrong} against {result.previous_wrong} of {result.compared} labeled predictions are wrong"
        return (
            f"the risk is proven more than {result.limit:.1%} above that of {previous}: {counted}; "
            f"the first {(result.alarm_at or 0) + 1} proved it"
        )

    def _incomparable(self, champion: Signature) -> str:
        """Return why the two versions' predictions cannot be compared, or nothing."""
        old = self.bundle.contract.signature
        if not all(isinstance(problem_of(signature), Classification) for signature in (old, champion)):
            return "labels are joined for classification alone"
        return _other_inputs(old, champion)

    def _losses(self, champion: Signature, history: MonitorHistory, log: RequestLogReader, folder: Path) -> Floats:
        """Return 1 where the predecessor is wrong, shape (labeled,); NaN where the log has no inputs."""
        file, places = folder / f"previous-{self.bundle.digest[:VERSION_DIGITS]}.npz", history.places[history.labeled]
        known = _stored(file, places)
        new = slice(len(known), None)
        if not len(places[new]):
            return known
        predicted = self._predictions(places[new], history.times[history.labeled][new] >= self.since, log)
        classes = self._classes(champion)
        wrong = [
            classes.get(index, index) != label
            for index, label in zip(predicted, history.labels[new].tolist(), strict=True)
        ]
        losses = np.where([index is None for index in predicted], np.nan, np.array(wrong, np.float64))
        all_losses = np.concatenate([known, losses])
        temporary = file.with_name(f".{file.name}")
        np.savez(temporary, allow_pickle=False, places=places, losses=all_losses)
        temporary.replace(file)
        return all_losses

    def _predictions(self, places: Indices, chosen: npt.NDArray[np.bool_], log: RequestLogReader) -> list[int | None]:
        """Return the class that the predecessor predicts at each place; None where it cannot, or has no inputs."""
        predictor, predictions = Predictor(self.bundle, threads=1), list[int | None]()
        last, classes = (0, 0), list[int]()
        for (file, row, sample), is_chosen in zip(places.tolist(), chosen.tolist(), strict=True):
            if last != (file, row):
                last = (file, row)
                inputs = log.inputs(last) if is_chosen else None
                classes = [] if inputs is None else _predicted(predictor, inputs)
            predictions.append(classes[sample] if sample < len(classes) else None)
        return predictions

    def _classes(self, champion: Signature) -> dict[int | None, int]:
        """Return the champion's class for each of the predecessor's that has another index, by name."""
        old, new = self.bundle.contract.signature.labels, {name: i for i, name in enumerate(champion.labels)}
        return {i: new.get(name, NO_CLASS) for i, name in enumerate(old)} if old and new else {}


def paired_wealth(losses: Floats, before: Floats, drop: float) -> Wealth:
    """Return the evidence after each sample that the risk has been above the predecessor's by more than `drop`."""
    return labeled_wealth((1 + losses - before) / 2, (1 + drop) / 2)


def _predicted(predictor: Predictor, inputs: NamedArrays) -> list[int]:
    """Return the predicted class of each sample; none where the model cannot run on the inputs."""
    try:
        outputs = predictor.run(inputs)
    except StageError:
        return []
    classes = predictor.problem.predictions(outputs[predictor.problem.primary_output])
    return [] if classes is None else [int(index) for index in classes]


def finite_outputs(bundle: Bundle) -> tuple[str, ...]:
    """Return the outputs that have to be finite: those whose golden ones are."""
    golden = bundle.golden().outputs
    return tuple(name for name, array in golden.items() if array.dtype.kind == "f" and np.isfinite(array).all())


def _finite_samples(predictor: Predictor, inputs: NamedArrays | None, names: Sequence[str], samples: Indices) -> Floats:
    """Return 1 for each of the samples of a request for which a model has finite outputs, 0 where that is unknown."""
    try:
        outputs = predictor.run(inputs) if inputs is not None else {}
    except StageError:
        outputs = {}
    count = max((len(array) for array in outputs.values()), default=0)
    if not count:
        return np.zeros(len(samples))
    return np.asarray((1 - are_broken(outputs, None, None, names, count))[samples])


def _other_inputs(old: Signature, new: Signature) -> str:
    """Return that a model cannot run on what another one has logged, or nothing."""
    return "" if _takes(old) == _takes(new) else "the previous champion takes other inputs than the log has"


def _takes(signature: Signature) -> object:
    """Return what has to be equal where one model's inputs are another's, too; names of axes do not count."""
    axes = [[None if isinstance(axis, str) else axis for axis in spec.shape] for spec in signature.inputs]
    return [(spec.name, spec.dtype) for spec in signature.inputs], axes, signature.preprocessing, signature.layout


def _stored(file: Path, places: Indices) -> Floats:
    """Return the losses at the first of the places, as far as they were computed before."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            known, losses = stored["places"], stored["losses"]
    except NPZ_ERRORS:
        return np.empty(0)
    count = len(known)
    return np.asarray(losses) if count <= len(places) and np.array_equal(known, places[:count]) else np.empty(0)
