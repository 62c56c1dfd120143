"""Does a service fail, answer late, or give outputs that are not finite, more often than its limits allow?

Trouble comes in bursts: requests of the same second fail together, and counted one by one they would prove within
three requests what is over a moment later. So the bets are on windows of at least ten seconds and ten requests, of
which each has one loss, the share of its requests in trouble. A window that may still grow is left out, so looking
often and once are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.martingale import Wealth
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, ServiceResult
from wings.lifecycle.library.monitoring.risk_evidence import exceeds_wealth

WINDOW_S, WINDOW_REQUESTS = 10.0, 10
"""Least size of a window."""
LATE_SHARE = 0.01
"""Of the requests: what a limit of the 99th percentile allows."""
FAILED, BROKEN, LATE = "failed requests", "outputs not finite", "late requests"


@dataclass(frozen=True)
class ServiceTest:
    """One kind of trouble: its loss in each window, and the evidence after each."""

    name: str
    description: str
    limit: float
    requests: int
    troubled: int
    wealth: Wealth

    def result(self, level: float) -> ServiceResult:
        """Return what is found at a level."""
        return ServiceResult(
            name=self.name,
            description=self.description,
            requests=self.requests,
            troubled=self.troubled,
            limit=self.limit,
            windows=len(self.wealth.log),
            evidence=max(0.0, float(self.wealth.log.max(initial=0) / np.log(10))),
            threshold=float(-np.log10(level)),
            alarm_at=self.wealth.first_above(level),
        )


def service_tests(history: MonitorHistory, limits: MonitorLimits, since: float = 0.0) -> tuple[ServiceTest, ...]:
    """Run the tests on what was logged at or after a time, in seconds since 1970."""
    later, answered = history.outcome_times >= since, history.times >= since
    times, shares = history.outcome_times[later], limits.max_failed_share
    tests = [
        _test(
            FAILED, "requests that the service or the runtime could not answer", shares, times, history.failed[later]
        ),
        _test(
            BROKEN,
            "samples with an output that is not finite, although the input is",
            shares,
            history.times[answered],
            history.broken[answered],
        ),
    ]
    if limits.p99_ms is not None:
        late = (history.milliseconds[later] > limits.p99_ms).astype(np.float64)
        tests.append(_test(LATE, f"requests that took longer than {limits.p99_ms:g} ms", LATE_SHARE, times, late))
    return tuple(tests)


def harms(results: Sequence[ServiceResult]) -> list[str]:
    """Return a sentence for each limit that is proven to be broken."""
    return [
        f"{result.name} are proven above {result.limit:.1%}: {result.troubled} of {result.requests}"
        for result in results
        if result.alarm_at is not None
    ]


def window_losses(times: Floats, troubled: Floats) -> Floats:
    """Return the share in trouble of each window that is over; times in seconds, in the order of the log.

    A clock that is set forward or back moves by no more than one window.
    """
    steps = np.clip(np.diff(times, prepend=times[:1]), 0, WINDOW_S)
    numbers = np.floor((times[:1] % WINDOW_S + np.cumsum(steps)) / WINDOW_S)
    _, counts = np.unique(numbers, return_counts=True)
    sizes, open_window = list[int](), 0
    for count in counts[:-1].tolist():  # what came in the last ten seconds may still grow
        open_window += count
        if open_window >= WINDOW_REQUESTS:
            sizes.append(open_window)
            open_window = 0
    ends = np.cumsum(sizes, dtype=np.int64)
    sums = np.concatenate([[0.0], np.cumsum(troubled)])[np.concatenate([[0], ends])]
    return np.asarray(np.diff(sums) / np.diff(ends, prepend=0))


def _test(name: str, description: str, limit: float, times: Floats, troubled: Floats) -> ServiceTest:
    evidence = exceeds_wealth(window_losses(times, troubled), limit)
    return ServiceTest(name, description, limit, len(times), int(troubled.sum()), evidence)
