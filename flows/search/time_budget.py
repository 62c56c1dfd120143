"""The time for the search of candidates: what would end too late is not tried, and the report says so."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from gauntlet.core.errors import NotTried

PASSES_SHARE = 1 / 3
"""Of the time, for the graph passes, which come first."""


@dataclass(frozen=True)
class RunLimit:
    """The time that a whole run keeps to, if the gates let it, which take what they need; None for no limit."""

    seconds: float | None = None
    start: float = field(default_factory=monotonic)

    def part(self, share: float, other_s: float | None = None) -> float | None:
        """Return a share of the time, but no more than is left and another limit allow, in seconds; None for none."""
        if self.seconds is None:
            return other_s
        left_s = max(1.0, self.seconds - (monotonic() - self.start))
        return min(share * self.seconds, left_s, math.inf if other_s is None else other_s)


MAX_RESERVE = 1 / 3
"""Share of the time that recipes leave for a repair, at most."""


@dataclass
class TimeBudget:
    """Time for the passes, the calibration, the recipes and a repair of one network; None for no limit.

    It starts when it is made. Of what it limits, `at_once` are at work at the same time, and the others wait for their
    turn: whether there is time for one is decided when it would start. Other work may run side by side with these.
    """

    seconds: float | None
    clock: Callable[[], float] = monotonic
    at_once: int = 1
    for_repair_s: float = 0.0
    """What recipes leave for a repair."""
    start: float = field(init=False)
    longest: float = field(default=0.0, init=False)
    """Time of the longest recipe so far, its gates included: the next may take as long."""

    def __post_init__(self) -> None:
        self.start = self.clock()
        self._turn, self._at_work, self._waiting = threading.Condition(), 0, list[int]()

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.start

    @property
    def for_passes(self) -> float | None:
        """The time limit of the graph passes together."""
        return None if self.seconds is None else self.seconds * PASSES_SHARE

    @contextmanager
    def graph_pass(self, place: int) -> Iterator[None]:
        """Try a graph pass inside, which is at a place of their list.

        A chain is one pass of this list, and has `for_passes` for its own ones.

        Raises:
            NotTried: when it comes too late to be tried; the first never does.
        """
        with self._in_turn(place):
            if self.for_passes is not None and place > 0 and self.used >= self.for_passes:
                raise self._too_late(f"graph passes have {round(self.for_passes, 1):g} s of it")
            yield

    @contextmanager
    def recipe(self, place: int) -> Iterator[None]:
        """Try a recipe inside.

        Raises:
            NotTried: when a repair would probably have too little time after it, as the longest one so far took long;
                the first is always tried.
        """
        with self._in_turn(place):
            reserve_s = min(self.for_repair_s, MAX_RESERVE * (self.seconds or 0.0))
            late = self.seconds is not None and self.used + self.longest + reserve_s >= self.seconds
            if late and place > 0:
                kept = f", and {round(reserve_s, 1):g} s are kept for a repair" if reserve_s else ""
                raise self._too_late(f"a recipe has taken up to {self.longest:.0f} s{kept}")
            start = self.clock()
            try:
                yield
            finally:
                self.longest = max(self.longest, self.clock() - start)

    def require_repair(self, key: str) -> None:
        """Raise NotTried when a repair would end too late; its time limit is the value of a key."""
        if self.seconds is not None and self.used + self.for_repair_s > self.seconds:
            raise self._too_late(f"a repair may take {self.for_repair_s:g} s ({key})")

    @contextmanager
    def _in_turn(self, place: int) -> Iterator[None]:
        """Wait until fewer than `at_once` are at work; of those that wait, the first place is the next."""
        if self.seconds is None:
            yield
            return
        with self._turn:
            self._waiting.append(place)
            try:
                self._turn.wait_for(lambda: self._at_work < self.at_once and place == min(self._waiting))
            finally:
                self._waiting.remove(place)
                self._turn.notify_all()
            self._at_work += 1
        try:
            yield
        finally:
            with self._turn:
                self._at_work -= 1
                self._turn.notify_all()

    def _too_late(self, why: str) -> NotTried:
        return NotTried(f"{self.used:.0f} s of quantize_budget_s, {self.seconds:g} s, are used, and {why}")
