"""LoadGen as the last stage of a real run: its verdict ends the run."""

from collections.abc import Callable

import pytest
from harness import quick_config

from configs.schema import PipelineConfig
from gauntlet.core.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]


@pytest.mark.slow
def test_run_ends_at_loadgen_when_this_says_invalid(run: Run) -> None:
    starved = "{scenario: SingleStream, min_duration_s: 2, expected_latency_ms: 1000, min_queries: 1}"
    failed = run(quick_config(f"loadgen=[{starved}]", "optimize=[]", "quantize=[]"))
    assert (failed.verdict, failed.stopped_at) == ("failed", "loadgen")
    assert "LoadGen says INVALID: min duration not met" in failed.reason
    assert [stage.stage for stage in failed.stages[-2:]] == ["confirm", "loadgen"]
    assert failed.winner is None


@pytest.mark.slow
def test_winner_is_shipped_and_asked_where_it_is_fastest(run: Run) -> None:
    report = run(
        quick_config(
            "benchmark.targets=[{kind: ort-cpu, level: 'off'}, ort-cpu]",
            "benchmark.deploy_targets=[ort-cpu]",
            "loadgen=[{scenario: SingleStream, min_duration_s: 0.2, min_queries: 64}]",
        )
    )
    assert (report.verdict, [entry.stage for entry in report.stages[-2:]]) == ("passed", ["loadgen", "package"])
    winner = next(candidate for candidate in report.candidates if candidate.name == report.winner)
    assert (winner.target, winner.session) == ("ort-cpu", None)
    assert {row.target for row in winner.benchmark} == {"ort-cpu", "ort-cpu-off"}
    assert winner.benchmark[0].target == "ort-cpu"
    [told] = [stage.facts for stage in report.stages if stage.stage == "select"]
    assert told["target"] == "ort-cpu"
