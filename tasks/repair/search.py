"""Search for the nodes to leave in float: rank them once, predict sets, and evaluate only promising ones in full."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from time import monotonic
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from tasks.repair.quality import Limits, QualitySummary
from tasks.repair.trial import Evaluator, Nodes, Trial

UNSEEN_LOSS_DB = 3.0
"""Added to the SQNR of a model that its gate rejected but that looks good enough on the images of the search."""

RANKING_SHARE = 0.5  # share of the time for the ranking; nodes that are not ranked by then come last

Stopped = Literal[
    "found", "not faster", "not even in float", "evaluations used up", "time used up", "nothing to repair"
]


class SearchBudget(Frozen):
    """Limits on the effort of a search."""

    sensitivity_images: int = Field(4, ge=1, description="images to rank the nodes on")
    prediction_images: int = Field(64, ge=1, description="images to predict a set's quality on")
    sqnr_margin_db: float = Field(1.0, gt=0, description="SQNR added to the limit after a set falls short, in decibels")
    min_speedup: float = Field(1.0, ge=1, description="over FP32, in a short race; the whole interval must lie above")
    max_trials: int = Field(4, ge=1, description="largest number of sets to quantize, evaluate and race")
    budget_s: float = Field(120, gt=0, description="after this, only the best set so far is evaluated in full")


class NodeSensitivity(Frozen):
    """One node, and the SQNR of the model's outputs when only this node is quantized."""

    node: str
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
        self.ranking: tuple[NodeSensitivity, ...] = ()
        self.trials: list[Trial] = []
        self.predictions: dict[Nodes, QualitySummary] = {}
        self.stopped: Stopped = "nothing to repair"

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All nodes, by the noise that each alone adds to the outputs; last those that there was no time to rank."""
        found = [
            NodeSensitivity(node=node, sqnr_db=self.evaluator.alone(node).sqnr_db)
            for node in sorted(self.evaluator.nodes)
            if self._in_time(RANKING_SHARE)
        ]
        self.ranking = tuple(sorted(found, key=lambda r: (_least_when_nan(r.sqnr_db), r.node)))
        ranked = tuple(r.node for r in self.ranking)
        return ranked + tuple(sorted(self.evaluator.nodes.difference(ranked)))

    def run(self, before: QualitySummary) -> Trial:
        """Search for the smallest sufficient set, given the rejected candidate's quality; return the best trial."""
        if self.gate.accept(before):
            self.gate = self.limits = replace(self.gate, min_sqnr_db=before.sqnr_db + UNSEEN_LOSS_DB)
        while True:
            nodes = self._next()
            cut_short = bool(nodes) and not self._in_time()
            trial = self._evaluated(nodes)
            self.trials.append(trial)
            if outcome := self._outcome(trial, cut_short=cut_short):
                self.stopped = outcome
                return max(self.trials, key=self._worth)
            if self.limits.accept(trial.predicted):  # the prediction was too optimistic
                stricter = max(self.limits.min_sqnr_db, trial.predicted.sqnr_db) + self.budget.sqnr_margin_db
                self.limits = replace(self.gate, min_sqnr_db=stricter)

    def _next(self) -> Nodes:
        """Return the set to evaluate next: the smallest promising one, or all nodes."""
        failed = [frozenset(trial.float_nodes) for trial in self.trials]
        if self.whole_first and not failed:
            return frozenset()

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
        speed = self.evaluator.race() if good else None
        predicted = self._predicted(nodes)
        in_order = tuple(node for node in self.order if node in nodes) if nodes else ()  # no ranking for no nodes
        return Trial(float_nodes=in_order, predicted=predicted, quality=quality, good=good, speed=speed)

    def _outcome(self, trial: Trial, *, cut_short: bool) -> Stopped | None:
        """Return why the search ends after this trial; None if it continues."""
        if trial.good:
            done: Stopped = "found" if self._is_faster(trial) else "not faster"
            return "time used up" if cut_short else done
        if len(trial.float_nodes) == len(self.evaluator.nodes):
            return "not even in float"
        if len(self.trials) >= self.budget.max_trials:
            return "evaluations used up"
        return None if self._in_time() else "time used up"

    def _in_time(self, share: float = 1) -> bool:
        return monotonic() - self.start < share * self.budget.budget_s

    def _worth(self, trial: Trial) -> tuple[bool, bool, float]:
        return trial.good, self._is_faster(trial), _least_when_nan(trial.quality.sqnr_db)

    def _is_faster(self, trial: Trial) -> bool:
        return trial.speed is not None and trial.speed.low > self.budget.min_speedup


def smallest_sufficient_set(
    ranking: Sequence[str], good: Callable[[Nodes], bool], in_time: Callable[[], bool] = lambda: True
) -> Nodes | None:
    """Return a small non-empty set of nodes for which `good` holds; None if it does not hold for all of them.

    Doubling and bisection find a prefix of the ranking, assuming that quality rises with its length; then each node is
    removed on trial, the least important first. When `in_time` ends the search, the result is the smallest good set so
    far, or else the prefix to be tried next.

    `ranking` has the most important node first; `good` tells whether it suffices to leave these nodes in float.
    """
    enough = 1
    while in_time() and not good(frozenset(ranking[:enough])):
        if enough >= len(ranking):
            return None
        enough *= 2
    enough, least = min(enough, len(ranking)), enough // 2 + 1
    while least < enough and in_time():
        middle = (least + enough) // 2
        least, enough = (least, middle) if good(frozenset(ranking[:middle])) else (middle + 1, enough)
    chosen = frozenset(ranking[:enough])
    for node in reversed(ranking[:enough]):
        if len(chosen) > 1 and in_time() and good(chosen - {node}):
            chosen -= {node}
    return chosen


def _least_when_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value
