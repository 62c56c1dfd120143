"""Search for the nodes to leave in float: rank units of them, predict sets, and evaluate the promising ones in full."""

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, pairwise
from time import monotonic
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from wings.repair.quality import Limits, QualitySummary
from wings.repair.switchable_model import Unit
from wings.repair.trial import Evaluator, Nodes, Trial

UNSEEN_LOSS_DB = 3.0
"""Added to the SQNR of a model that its gate rejected but that looks good enough on the images of the search."""
RANKING_SHARE = 0.5  # share of the time for the ranking; units that are not ranked by then come last
NEGLIGIBLE_DB = 25.0
"""A group of units whose noise is this far below that of all of them is not looked into."""
MAX_GAP = 2
"""Units between two float ones that are left in float, too, where the result is not proven slower."""
MAX_TRIALS = 4
"""Sets that are quantized, evaluated and raced."""
SQNR_MARGIN_DB = 1.0
"""Added to the limit after a set falls short."""
Stopped = Literal[
    "found", "not faster", "not even in float", "evaluations used up", "time used up", "nothing to repair"
]


class SearchBudget(Frozen):
    """Limits on the effort of a search."""

    min_speedup: float = Field(1.0, ge=1, description="over FP32, in a short race; the whole interval must lie above")
    budget_s: float = Field(120, gt=0, description="after this, only the best set so far is evaluated in full")


class UnitNoise(Frozen):
    """A unit of nodes, and the SQNR of the model's outputs when only these are quantized."""

    nodes: Unit
    sqnr_db: Number


class MixedPrecisionSearch:
    """One search: `ranking`, `trials`, `predictions` and `stopped` describe its course.

    A full evaluation must satisfy `gate`. The time budget began at `start`, by `time.monotonic`. With `whole_first`,
    the model without any node in float is evaluated first.
    """

    def __init__(
        self, budget: SearchBudget, gate: Limits, evaluator: Evaluator, *, start: float, whole_first: bool = False
    ) -> None:
        self.budget, self.evaluator, self.start, self.whole_first = budget, evaluator, start, whole_first
        self.gate = self.limits = gate  # `limits` are for predictions: stricter after one that was too optimistic
        self.ranking: tuple[UnitNoise, ...] = ()
        self.trials: list[Trial] = []
        self.predictions: dict[Nodes, QualitySummary] = {}
        self.stopped: Stopped = "nothing to repair"

    @cached_property
    def order(self) -> tuple[Unit, ...]:
        """All units, by the noise that each alone adds to the outputs; last those that there was no time to rank.

        The noisiest group of units is halved again and again. The noise of units nearly adds up, so that a culprit
        among n of them takes about 2 log2(n) passes, and those that are hardly noisy take none of their own.
        """
        ranking, units = list[UnitNoise](), self.evaluator.units
        groups = [(self._alone_db(units), 0, units)]
        all_db = groups[0][0]
        negligible_db = math.inf if all_db == -math.inf else all_db + NEGLIGIBLE_DB
        while groups and groups[0][0] < negligible_db and self._in_time(RANKING_SHARE):
            sqnr_db, place, group = heapq.heappop(groups)
            if len(group) == 1:
                ranking.append(UnitNoise(nodes=group[0], sqnr_db=sqnr_db))
                continue
            middle = len(group) // 2
            for start, half in ((place, group[:middle]), (place + middle, group[middle:])):
                heapq.heappush(groups, (self._alone_db(half), start, half))
        self.ranking = tuple(ranking)
        return (*(each.nodes for each in ranking), *chain.from_iterable(group for _, _, group in sorted(groups)))

    def _alone_db(self, units: Sequence[Unit]) -> float:
        return _least_when_nan(self.evaluator.alone(_nodes(units)).sqnr_db)

    def run(self, before: QualitySummary) -> Trial:
        """Search for the smallest sufficient set, given the rejected candidate's quality; return the best trial."""
        if self.gate.accept(before):
            self.gate = self.limits = replace(self.gate, headroom_db=before.headroom_db + UNSEEN_LOSS_DB)
        if not self.whole_first and not self.evaluator.stem:  # predictions see fewer images, of the same file
            bias_db = before.headroom_db - self._predicted(Nodes()).headroom_db
            if math.isfinite(bias_db):
                self.limits = replace(self.limits, headroom_db=self.limits.headroom_db - bias_db)
        while True:
            nodes = self._next()
            cut_short = bool(nodes) and not self._in_time()
            trial = self._evaluated(nodes)
            self.trials.append(trial)
            if outcome := self._outcome(trial, cut_short=cut_short):
                self.stopped = outcome
                return self._best(trial)
            if self.limits.accept(trial.predicted):  # the prediction was too optimistic
                stricter = max(self.limits.headroom_db, trial.predicted.headroom_db) + SQNR_MARGIN_DB
                self.limits = replace(self.gate, headroom_db=stricter)

    def _best(self, last: Trial) -> Trial:
        """Return the best trial, after one more with fewer borders between floats and integers where that may help."""
        joined = self._joined(last.float_nodes)
        may_try = self.evaluator.raced and self._in_time() and len(self.trials) < MAX_TRIALS
        if not last.good or joined == set(last.float_nodes) or not may_try:
            return max(self.trials, key=self._worth)
        trial = self._evaluated(joined)
        self.trials.append(trial)
        proven_slower = trial.speed is None or (last.speed is not None and trial.speed.high < last.speed.low)
        return last if proven_slower else max(last, trial, key=self._worth)

    def _joined(self, nodes: Collection[str]) -> Nodes:
        """Return the nodes with those of every short gap between two of their units, in the order of the graph."""
        places = [place for place, unit in enumerate(self.evaluator.units) if set(unit) <= set(nodes)]
        gaps = [range(a + 1, b) for a, b in pairwise(places) if b - a - 1 <= MAX_GAP]
        return _nodes([tuple(nodes), *(self.evaluator.units[place] for gap in gaps for place in gap)])

    def _next(self) -> Nodes:
        """Return the set to evaluate next: the smallest promising one, or all nodes."""
        failed = [frozenset(trial.float_nodes) for trial in self.trials]
        if not failed and (self.whole_first or (self.evaluator.stem and self.limits.accept(self._predicted(Nodes())))):
            return Nodes()

        def promising(nodes: Nodes) -> bool:  # no subset of a failed set is, whatever its prediction
            return not any(nodes <= other for other in failed) and self.limits.accept(self._predicted(nodes))

        return smallest_sufficient_set(self.order, promising, self._in_time) or self.evaluator.nodes

    def _predicted(self, nodes: Nodes) -> QualitySummary:
        if nodes not in self.predictions:
            self.predictions[nodes] = self.evaluator.predict(nodes)
        return self.predictions[nodes]

    def _evaluated(self, nodes: Nodes) -> Trial:
        quality = self.evaluator.evaluate(nodes)
        good = self.gate.accept(quality)
        speed = self.evaluator.race() if good and self.evaluator.raced else None
        predicted = self._predicted(nodes)
        in_order = tuple(node for unit in self.order for node in unit if node in nodes) if nodes else ()
        return Trial(float_nodes=in_order, predicted=predicted, quality=quality, good=good, speed=speed)

    def _outcome(self, trial: Trial, *, cut_short: bool) -> Stopped | None:
        """Return why the search ends after this trial; None if it continues."""
        if trial.good:
            done: Stopped = "found" if self._is_faster(trial) or not self.evaluator.raced else "not faster"
            return "time used up" if cut_short else done
        if len(trial.float_nodes) == len(self.evaluator.nodes):
            return "not even in float"
        if len(self.trials) >= MAX_TRIALS:
            return "evaluations used up"
        return None if self._in_time() else "time used up"

    def _in_time(self, share: float = 1) -> bool:
        return monotonic() - self.start < share * self.budget.budget_s

    def _worth(self, trial: Trial) -> tuple[bool, bool, float]:
        return trial.good, self._is_faster(trial), _least_when_nan(trial.quality.sqnr_db)

    def _is_faster(self, trial: Trial) -> bool:
        return trial.speed is not None and trial.speed.low > self.budget.min_speedup


def smallest_sufficient_set(
    ranking: Sequence[Unit], good: Callable[[Nodes], bool], in_time: Callable[[], bool] = lambda: True
) -> Nodes | None:
    """Return the nodes of few units for which `good` holds, of one at least; None if it does not hold for all of them.

    Doubling and bisection find a prefix of the ranking, assuming that quality rises with its length; then each unit is
    removed on trial, the least important first. When `in_time` ends the search, the result is the smallest good set so
    far, or else the prefix to be tried next.

    `ranking` has the most important unit first; `good` tells whether it suffices to leave these nodes in float.
    """
    enough = 1
    while in_time() and not good(_nodes(ranking[:enough])):
        if enough >= len(ranking):
            return None
        enough *= 2
    enough, least = min(enough, len(ranking)), enough // 2 + 1
    while least < enough and in_time():
        middle = (least + enough) // 2
        least, enough = (least, middle) if good(_nodes(ranking[:middle])) else (middle + 1, enough)
    chosen = list(ranking[:enough])
    for unit in reversed(ranking[:enough]):
        others = [each for each in chosen if each != unit]
        if others and in_time() and good(_nodes(others)):
            chosen = others
    return _nodes(chosen)


def _nodes(units: Iterable[Unit]) -> Nodes:
    return frozenset(chain.from_iterable(units))


def _least_when_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value
