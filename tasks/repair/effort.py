"""The search itself: rank the nodes once, predict, and evaluate in full only what should do."""

import json
from collections.abc import Callable, Collection
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

Stopped = Literal["found", "not faster", "evaluations used up", "time used up", "nothing to repair"]


class Effort(Frozen):
    """How hard to look."""

    ranking_images: int = Field(4, ge=1, description="images to rank the nodes on")
    predicting_images: int = Field(64, ge=1, description="images to predict a set's quality on; all judge it in full")
    margin_db: float = Field(1.0, gt=0, description="SQNR asked for on top when a set falls short, in decibels")
    min_speedup: float = Field(1.0, ge=1, description="over FP32, in a short race; the interval must lie above")
    max_evaluations: int = Field(4, ge=1, description="sets to quantise for good, answer and race")
    budget_s: float = Field(120, gt=0, description="nothing more is evaluated in full after this")


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
    ) -> None:
        self.effort, self.candidate, self.network = effort, candidate, network
        self.reference, self.journal, self.file = reference, journal, file
        self.gate = Limits(accuracy, accuracy.min_sqnr_db)  # what a full evaluation must reach
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
        ]
        return tuple(sorted(found, key=lambda r: (r.sqnr_db, r.node)))

    def run(self, quantise: Callable[[Nodes], None]) -> Attempt:
        """Look for the smallest set; return the best that was evaluated.

        Args:
            quantise: writes the model with these nodes in float to the search's file.
        """
        order = [r.node for r in self.ranking]
        self.before = self._asked("before", lambda: self.reference.quality(self.reference.ask(self.candidate)))
        if self.gate.allow(self.before):
            self.gate = self.limits = Limits(self.gate.accuracy, self.before.sqnr_db + UNSEEN_LOSS_DB)
        while True:
            nodes = smallest(order, lambda nodes: self.limits.allow(self.predicted(nodes))) or frozenset(order)
            attempt = self._evaluated(nodes, quantise)
            self.attempts.append(attempt)
            if attempt.good:
                self.stopped = "found" if self._is_faster(attempt) else "not faster"
            elif len(self.attempts) >= self.effort.max_evaluations:
                self.stopped = "evaluations used up"
            elif self.journal.seconds > self.effort.budget_s:
                self.stopped = "time used up"
            else:
                more = max(self.limits.min_sqnr_db, self.predicted(nodes).sqnr_db) + self.effort.margin_db
                self.limits = Limits(self.gate.accuracy, more)
                continue
            return max(self.attempts, key=lambda a: (a.good, self._is_faster(a), a.quality.sqnr_db))

    def predicted(self, nodes: Nodes) -> Quality:
        """Return the quality with these nodes in float, by the switches."""
        rest = self.network.nodes - nodes
        samples = head(self.reference.samples, self.effort.predicting_images)
        return self._asked(
            f"without {' '.join(sorted(nodes))}", lambda: self.reference.quality(self.network.run(samples, rest))
        )

    def in_order(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Return nodes in the order of their ranking."""
        return tuple(r.node for r in self.ranking if r.node in nodes)

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

        question = f"evaluated {' '.join(sorted(nodes))} at {self.limits.min_sqnr_db:g} dB"
        return Attempt.model_validate(self.journal.answer(question, lambda: _plain(find_out())))

    def _asked(self, question: str, find_out: Callable[[], Quality]) -> Quality:
        return Quality.model_validate(self.journal.answer(question, lambda: _plain(find_out())))

    def _is_faster(self, attempt: Attempt) -> bool:
        return attempt.speed is not None and attempt.speed.low > self.effort.min_speedup


def _plain(value: Frozen) -> JsonObject:
    """Return a value as JSON keeps it, NaN and infinity as words."""
    plain: JsonObject = json.loads(value.model_dump_json())
    return plain
