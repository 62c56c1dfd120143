"""The search itself: rank the nodes once, predict, and evaluate in full only what should do."""

import math
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from time import monotonic
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from tasks.repair.quality import Limits, QualitySummary
from tasks.repair.smallest_set import Nodes, smallest_sufficient_set
from tasks.repair.trial import Evaluator, Trial

UNSEEN_LOSS_DB = 3.0
"""Asked for on top where a model that its gate rejected looks good enough on the images of the search."""

RANKING_SHARE = 0.5
"""Of the time; nodes that are not ranked by then come last."""

Stopped = Literal[
    "found", "not faster", "not even in float", "evaluations used up", "time used up", "nothing to repair"
]


class SearchBudget(Frozen):
    """How hard to look."""

    sensitivity_images: int = Field(4, ge=1, description="images to rank the nodes on")
    prediction_images: int = Field(64, ge=1, description="images to predict a set's quality on; all judge it in full")
    sqnr_margin_db: float = Field(1.0, gt=0, description="SQNR asked for on top when a set falls short, in decibels")
    min_speedup: float = Field(1.0, ge=1, description="over FP32, in a short race; the interval must lie above")
    max_trials: int = Field(4, ge=1, description="sets to quantise for good, answer and race")
    budget_s: float = Field(120, gt=0, description="after this, only the best set so far is evaluated in full")


class NodeSensitivity(Frozen):
    """One node, and the model's outputs when it alone is quantised."""

    node: str
    sqnr_db: Number


class MixedPrecisionSearch:
    """One search; its attributes tell how it went.

    Args:
        effort: how hard to look.
        gate: what a full evaluation must reach.
        evaluator: answers what the search asks.
        start: when the budget began, by `time.monotonic`.
        whole_first: evaluate the model without any node in float first.
    """

    def __init__(
        self, effort: SearchBudget, gate: Limits, evaluator: Evaluator, *, start: float, whole_first: bool = False
    ) -> None:
        self.effort, self.evaluator, self.start, self.whole_first = effort, evaluator, start, whole_first
        self.gate = gate
        self.limits = gate  # what a prediction must reach: more, after one that was too good
        self.ranking: tuple[NodeSensitivity, ...] = ()
        self.trials: list[Trial] = []
        self.predictions: dict[Nodes, QualitySummary] = {}
        self.stopped: Stopped = "nothing to repair"

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All nodes, by the noise that each alone brings to the outputs; then those that there was no time to rank."""
        found = [
            NodeSensitivity(node=node, sqnr_db=self.evaluator.alone(node).sqnr_db)
            for node in sorted(self.evaluator.nodes)
            if self._in_time(RANKING_SHARE)
        ]
        self.ranking = tuple(sorted(found, key=lambda r: (_least_when_nan(r.sqnr_db), r.node)))
        ranked = tuple(r.node for r in self.ranking)
        return ranked + tuple(sorted(self.evaluator.nodes - set(ranked)))

    def run(self, before: QualitySummary) -> Trial:
        """Look for the smallest set; return the best that was evaluated.

        Args:
            before: of the candidate that its gate rejected.
        """
        if self.gate.accept(before):
            self.gate = self.limits = replace(self.gate, min_sqnr_db=before.sqnr_db + UNSEEN_LOSS_DB)
        while True:
            nodes = self._next()
            cut_short = bool(nodes) and not self._in_time()
            attempt = self._evaluated(nodes)
            self.trials.append(attempt)
            if outcome := self._outcome(attempt, cut_short=cut_short):
                self.stopped = outcome
                return max(self.trials, key=self._worth)
            if self.limits.accept(attempt.predicted):  # and it was not good
                more = max(self.limits.min_sqnr_db, attempt.predicted.sqnr_db) + self.effort.sqnr_margin_db
                self.limits = replace(self.gate, min_sqnr_db=more)

    def in_order(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Return nodes in the order of their ranking."""
        return tuple(node for node in self.order if node in nodes) if nodes else ()

    def _next(self) -> Nodes:
        """Return what to evaluate: the smallest set that should do, or all nodes."""
        failed = [frozenset(attempt.float_nodes) for attempt in self.trials]
        if self.whole_first and not failed:
            return frozenset()

        def promising(nodes: Nodes) -> bool:
            """Whether it should do; a part of what did not will not, whatever is predicted."""
            return not any(nodes <= other for other in failed) and self.limits.accept(self._predicted(nodes))

        return smallest_sufficient_set(self.order, promising, self._in_time) or self.evaluator.nodes

    def _predicted(self, nodes: Nodes) -> QualitySummary:
        if nodes not in self.predictions:
            self.predictions[nodes] = self.evaluator.predict(nodes)
        return self.predictions[nodes]

    def _evaluated(self, nodes: Nodes) -> Trial:
        """Quantise for good, answer all images, and race what is good enough."""
        quality = self.evaluator.evaluate(nodes)
        good = self.gate.accept(quality)
        speed = self.evaluator.race() if good else None
        predicted = self._predicted(nodes)
        return Trial(float_nodes=self.in_order(nodes), predicted=predicted, quality=quality, good=good, speed=speed)

    def _outcome(self, attempt: Trial, *, cut_short: bool) -> Stopped | None:
        """Return why no more is to be evaluated, or None."""
        if attempt.good:
            done: Stopped = "found" if self._is_faster(attempt) else "not faster"
            return "time used up" if cut_short else done
        if len(attempt.float_nodes) == len(self.evaluator.nodes):
            return "not even in float"
        if len(self.trials) >= self.effort.max_trials:
            return "evaluations used up"
        return None if self._in_time() else "time used up"

    def _in_time(self, share: float = 1) -> bool:
        return monotonic() - self.start < share * self.effort.budget_s

    def _worth(self, attempt: Trial) -> tuple[bool, bool, float]:
        return attempt.good, self._is_faster(attempt), _least_when_nan(attempt.quality.sqnr_db)

    def _is_faster(self, attempt: Trial) -> bool:
        return attempt.speed is not None and attempt.speed.low > self.effort.min_speedup


def _least_when_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value
