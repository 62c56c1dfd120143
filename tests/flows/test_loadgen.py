"""LoadGen as the last stage of a real run: its verdict ends the run."""

from collections.abc import Callable

import pytest
from harness import quick_config

from configs.schema import PipelineConfig
from tasks.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]


@pytest.mark.slow
def test_run_ends_at_loadgen_when_this_says_invalid(run: Run) -> None:
    starved = "{scenario: SingleStream, min_duration_s: 2, expected_latency_ms: 1000, min_queries: 1}"
    failed = run(quick_config(f"loadgen=[{starved}]"))
    assert (failed.verdict, failed.stopped_at) == ("failed", "loadgen")
    assert "LoadGen says INVALID: min duration not met" in failed.reason
    assert [stage.stage for stage in failed.stages[-2:]] == ["select", "loadgen"]
    assert failed.winner is None
