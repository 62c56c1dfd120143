"""Is a champion proven worse than the version before it? Both predict the same labeled requests.

The previous champion runs on the inputs of every labeled sample, where the log has them (`--log-inputs all`). The
paired difference of the two losses, -1, 0 or 1, is mapped to 0 to 1, and bets that its mean exceeds what may be lost
are placed after every label (`gauntlet.monitoring.risk_test`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import NPZ_ERRORS
from gauntlet.monitoring.history import Indices, MonitorHistory
from gauntlet.monitoring.martingale import Floats, Wealth
from gauntlet.monitoring.request_log import VERSION_DIGITS, RequestLogReader
from gauntlet.monitoring.result import MonitorLimits, PreviousResult
from gauntlet.monitoring.risk_test import exceeds_wealth
from gauntlet.monitoring.service_test import harms, service_tests
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification

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
        level, tests = limits.false_alarms / 2, service_tests(history, limits, self.since)
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

    def _with_losses(
        self, result: PreviousResult, history: MonitorHistory, before: Floats, level: float
    ) -> PreviousResult:
        asked = history.times[history.labeled] >= self.since
        known = asked & np.isfinite(before)
        evidence = paired_wealth(history.losses[known], before[known], result.limit)
        return result.replace(
            compared=int(known.sum()),
            wrong=int(history.losses[known].sum()),
            previous_wrong=int(before[known].sum()),
            left_out=int((asked & ~known).sum()),
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
        if not all(isinstance(problem_of(one), Classification) for one in (old, champion)):
            return "labels are joined for classification alone"
        if _takes(old) != _takes(champion):
            return "the previous champion takes other inputs than the log has"
        return ""

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
            classes.get(one, one) != label for one, label in zip(predicted, history.labels[new].tolist(), strict=True)
        ]
        losses = np.where([one is None for one in predicted], np.nan, np.array(wrong, np.float64))
        found = np.concatenate([known, losses])
        temporary = file.with_name(f".{file.name}")
        np.savez(temporary, allow_pickle=False, places=places, losses=found)
        temporary.replace(file)
        return found

    def _predictions(self, places: Indices, wanted: npt.NDArray[np.bool_], log: RequestLogReader) -> list[int | None]:
        """Return the class that the predecessor predicts at each place; None where it cannot, or has no inputs."""
        predictor, predictions = Predictor(self.bundle, threads=1), list[int | None]()
        last, classes = (0, 0), list[int]()
        for (file, row, sample), is_wanted in zip(places.tolist(), wanted.tolist(), strict=True):
            if last != (file, row):
                last = (file, row)
                inputs = log.inputs(last) if is_wanted else None
                classes = [] if inputs is None else _predicted(predictor, inputs)
            predictions.append(classes[sample] if sample < len(classes) else None)
        return predictions

    def _classes(self, champion: Signature) -> dict[int | None, int]:
        """Return the champion's class for each of the predecessor's that has another index, by name."""
        old, new = self.bundle.contract.signature.labels, {name: i for i, name in enumerate(champion.labels)}
        return {i: new.get(name, NO_CLASS) for i, name in enumerate(old)} if old and new else {}


def paired_wealth(losses: Floats, before: Floats, drop: float) -> Wealth:
    """Return the evidence after each sample that the risk has been above the predecessor's by more than `drop`."""
    return exceeds_wealth((1 + losses - before) / 2, (1 + drop) / 2)


def _predicted(predictor: Predictor, inputs: NamedArrays) -> list[int]:
    """Return the predicted class of each sample; none where the model cannot run on the inputs."""
    try:
        outputs = predictor.run(inputs)
    except StageError:
        return []
    classes = predictor.problem.predictions(outputs[predictor.problem.primary_output])
    return [] if classes is None else [int(one) for one in classes]


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
