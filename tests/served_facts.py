"""Facts of the stage `serve`, by hand."""

from tasks.serve import judge
from tasks.serve.config import ServeFacts, ServingCost


def facts_of(low: float, p99: float, high: float) -> ServeFacts:
    """Return facts whose objective is a p99 of 10 ms."""
    cost = ServingCost(
        calls=900,
        bare_p50_ms=2.0,
        bare_p99_ms=3.0,
        served_p50_ms=2.25,
        served_p99_ms=4.0,
        added_p50_ms=0.25,
        added_p50_low_ms=0.2,
        added_p50_high_ms=0.3,
        added_p99_ms=1.0,
    )
    known = {"objective": {"p99_ms": 10, "rate": 5}, "verdict": judge(low, high, 10), "requests": 900, "refused": 2}
    known |= {"failed": 1, "p50_ms": 1, "p99_low_ms": low, "p99_ms": p99, "p99_high_ms": high, "figures": {}}
    return ServeFacts.model_validate(known | {"client_delay_p99_ms": 0, "cost": cost, "unmet_conditions": []})
