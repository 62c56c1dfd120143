"""The time that a run's work waits for others on its host, which is no work."""

from collections.abc import Callable
from time import monotonic

from flows.record.journal import Journal

WAITED = "waited"
"""The event of a wait that is over, with when it `began` and `ended` by the clock of its host, in seconds."""


def work_clock(journal: Journal) -> Callable[[], float]:
    """Return a clock, in seconds, that stands still while any work of the run waits for others on its host."""
    return lambda: monotonic() - waited_s(journal)


def waited_s(journal: Journal) -> float:
    """Return for how long at least one work waited. Waits of works side by side may overlap."""
    total, end = 0.0, float("-inf")
    for began, ended in sorted((event["began"], event["ended"]) for event in journal if event["op"] == WAITED):
        total += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return total
