"""What MLflow shows of a stage."""

import math

from served_facts import facts_of

from flows.tracking.metric_names import stage_metrics
from gauntlet.core.report import Report


def test_service_has_its_percentiles_and_what_it_adds() -> None:
    metrics = stage_metrics(Report(stage="serve", facts=facts_of(8, 9, math.inf), seconds=3.0))
    assert metrics == {
        "seconds.serve": 3.0,
        "serving.p50_ms": 1.0,
        "serving.p99_ms": 9.0,
        "serving.p99.low_ms": 8.0,
        "serving.added_p50_ms": 0.25,
        "serving.added_p99_ms": 1.0,
        "serving.unanswered": 3.0,
    }
