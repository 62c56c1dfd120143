"""What MLflow shows of a stage."""

import math

from remote_facts import ON_ORIN, all_races
from served_facts import facts_of

from flows.tracking.metric_names import remote_metrics, speed_metrics, stage_metrics
from gauntlet.core.report import Report
from tasks.remote import RemoteFacts


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


def test_rows_of_other_machines_never_have_the_names_of_rows_here() -> None:
    races = all_races()
    metrics = remote_metrics(RemoteFacts(races=races))
    assert ON_ORIN.name.endswith("-on-jetson")
    row = races[0].race.results[1].rows[0]
    assert metrics["int8"] == {
        f"latency.{ON_ORIN.name}.b1.p50_ms": row.median_ms,
        f"speedup.{ON_ORIN.name}.b1": row.speedup,
        f"speedup.{ON_ORIN.name}.b1.low": row.speedup_low,
        f"speedup.{ON_ORIN.name}.b1.high": row.speedup_high,
    }
    assert metrics["fp32"].keys() == metrics["int8"].keys()
    assert speed_metrics((row,))["latency.b1.p50_ms"] == row.median_ms
