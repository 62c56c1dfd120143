"""The search itself: rank the nodes once, predict, and evaluate in full only what should do."""

import json
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.accuracy import AccuracyConfig
from tasks.data.golden import head
from tasks.frozen import Frozen, JsonObject, Number
from tasks.repair.attempt import Attempt, race_with
from tasks.repair.journal import Journal
from tasks.repair.quality import Limits, Quality, Reference
from tasks.repair.search import Nodes, smallest
from tasks.repair.switches import Switchable

UNSEEN_LOSS_DB = 3.0
"""Asked for on top where a model that its gate rejected looks good enough on the images of the search."""

RANKING_SHARE = 0.5
"""Of the time; nodes that are not ranked by then come last."""

Stopped = Literal[
    "found", "not faster", "not even in float", "evaluations used up", "time used up", "nothing to repair"
]


class Effort(Frozen):
    """How hard to look."""

    ranking_images: int = Field(4, ge=1, description="images to rank the nodes on")
    predicting_images: int = Field(64, ge=1, description="images to predict a set's quality on; all judge it in full")
    margin_db: float = Field(1.0, gt=0, description="SQNR asked for on top when a set falls short, in decibels")
    min_speedup: float = Field(1.0, ge=1, description="over FP32, in a short race; the interval must lie above")
    max_evaluations: int = Field(4, ge=1, description="sets to quantise for good, answer and race")
    budget_s: float = Field(120, gt=0, description="after this, only the best set so far is evaluated in full")


class Ranked(Frozen):
    """One node, and the model's outputs when it alone is quantised."""

    node: str
    sqnr_db: Number


class Search:
    """One search; its attributes tell how it went."""

    def __init__(
        self,
        effort: Effort,
        accuracy: AccuracyConfig,
        candidate: Path,
        network: Switchable,
        reference: Reference,
        journal: Journal,
        file: Path,
        test_images: int,
    ) -> None:
        self.effort, self.candidate, self.network = effort, candidate, network
        self.reference, self.journal, self.file = reference, journal, file
        self.gate = Limits(accuracy, accuracy.min_sqnr_db, test_images)  # what a full evaluation must reach
        self.limits = self.gate  # what a prediction must reach: more, after one that was too good
        self.attempts: list[Attempt] = []
        self.before: Quality | None = None
        self.written: Nodes | None = None  # in float in the file, where this process wrote it
        self.stopped: Stopped = "nothing to repair"

    @cached_property
    def ranking(self) -> tuple[Ranked, ...]:
        """The nodes, by the noise that each alone brings to the outputs; the worst first."""
        few = head(self.reference.samples, self.effort.ranking_images)

        def alone(node: str) -> Quality:
            return self.reference.quality(self.network.run(few, [node]))

        found = [
            Ranked(node=n, sqnr_db=self._asked(f"alone {n}", partial(alone, n)).sqnr_db)
            for n in sorted(self.network.nodes)
            if self._in_time(RANKING_SHARE)
        ]
        return tuple(sorted(found, key=lambda r: (_least_when_nan(r.sqnr_db), r.node)))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All nodes: the ranked ones, then those for which there was no time."""
        ranked = tuple(r.node for r in self.ranking)
        return ranked + tuple(sorted(self.network.nodes - set(ranked)))

    def run(self, quantise: Callable[[Nodes], None]) -> Attempt:
        """Look for the smallest set; return the best that was evaluated.

        Args:
            quantise: writes the model with these nodes in float to the search's file.
        """
        self.before = self._asked("before", lambda: self.reference.quality(self.reference.ask(self.candidate)))
        if self.gate.allow(self.before):
            self.gate = self.limits = replace(self.gate, min_sqnr_db=self.before.sqnr_db + UNSEEN_LOSS_DB)
        failed: list[Nodes] = []

        def promising(nodes: Nodes) -> bool:
            """Whether it should do; a part of what did not will not, whatever is predicted."""
            return not any(nodes <= other for other in failed) and self.limits.allow(self.predicted(nodes))

        while True:
            nodes = smallest(self.order, promising, self._in_time) or self.network.nodes
            cut_short = not self._in_time()
            attempt = self._evaluated(nodes, quantise)
            self.attempts.append(attempt)
            failed.append(nodes)
            if attempt.good:
                done: Stopped = "found" if self._is_faster(attempt) else "not faster"
                self.stopped = "time used up" if cut_short else done
            elif nodes == self.network.nodes:
                self.stopped = "not even in float"
            elif len(self.attempts) >= self.effort.max_evaluations:
                self.stopped = "evaluations used up"
            elif not self._in_time():
                self.stopped = "time used up"
            else:
                more = max(self.limits.min_sqnr_db, self.predicted(nodes).sqnr_db) + self.effort.margin_db
                self.limits = replace(self.gate, min_sqnr_db=more)
                continue
            return max(self.attempts, key=lambda a: (a.good, self._is_faster(a), _least_when_nan(a.quality.sqnr_db)))

    def predicted(self, nodes: Nodes) -> Quality:
        """Return the quality with these nodes in float, by the switches."""
        rest = self.network.nodes - nodes
        samples = head(self.reference.samples, self.effort.predicting_images)
        return self._asked(
            f"without {' '.join(sorted(nodes))}", lambda: self.reference.quality(self.network.run(samples, rest))
        )

    def in_order(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Return nodes in the order of their ranking."""
        return tuple(node for node in self.order if node in nodes)

    def _evaluated(self, nodes: Nodes, quantise: Callable[[Nodes], None]) -> Attempt:
        """Quantise for good, answer all images, and race what is good enough."""

        def find_out() -> Attempt:
            quantise(nodes)
            self.written = nodes
            quality = self.reference.quality(self.reference.ask(self.file))
            good = self.gate.allow(quality)
            speed = race_with(self.reference, self.file) if good else None
            predicted = self.predicted(nodes)
            return Attempt(
                float_nodes=self.in_order(nodes), predicted=predicted, quality=quality, good=good, speed=speed
            )

        question = f"evaluated {' '.join(sorted(nodes))}"
        return Attempt.model_validate(self.journal.answer(question, lambda: _plain(find_out())))

    def _in_time(self, share: float = 1) -> bool:
        return self.journal.seconds < share * self.effort.budget_s

    def _asked(self, question: str, find_out: Callable[[], Quality]) -> Quality:
        return Quality.model_validate(self.journal.answer(question, lambda: _plain(find_out())))

    def _is_faster(self, attempt: Attempt) -> bool:
        return attempt.speed is not None and attempt.speed.low > self.effort.min_speedup


def _least_when_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _plain(value: Frozen) -> JsonObject:
    """Return a value as JSON keeps it, NaN and infinity as words."""
    plain: JsonObject = json.loads(value.model_dump_json())
    return plain
