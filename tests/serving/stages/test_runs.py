"""LoadGen and the serve gate as the last stage of a real run."""

from collections.abc import Callable
from importlib.util import find_spec

import needs
import pytest
from harness import quick_config
from mlflow import MlflowClient

from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from gauntlet.reporting.html_report import render_html

if find_spec("mlperf_loadgen") is None:
    needs.missing("mlperf_loadgen is not installed; install it with: make loadgen")

Run = Callable[[PipelineConfig], RunReport]


@pytest.mark.slow
def test_run_whose_service_cannot_keep_its_objective_fails_and_records_what_serving_adds(run: Run, home: Home) -> None:
    load = "min_duration_s: 0.1, min_queries: 500"
    report = run(
        quick_config("optimize=[]", "quantize=[]", f"serve={{objective: {{p99_ms: 0.001, rate: 200}}, {load}}}")
    )
    assert (report.verdict, report.stopped_at, report.winner) == ("failed", "serve", None)
    assert "proven beyond" in report.reason
    assert [stage.stage for stage in report.stages[-2:]] == ["package", "serve"]
    facts = report.stages[-1].facts
    assert 'id="of-serve"' in render_html(report)
    [parent] = MlflowClient(home.mlflow_uri).search_runs(["1"], "tags.stage = 'pipeline'")
    assert parent.data.metrics["serving.added_p50_ms"] == pytest.approx(facts["cost"]["added_p50_ms"])
    assert parent.data.metrics["gate.serve.p99_ms"] == parent.data.metrics["serving.p99.high_ms"]


@pytest.mark.nightly
def test_run_ends_at_loadgen_when_this_says_invalid(run: Run) -> None:
    starved = "{scenario: Server, target_qps: 1000, target_latency_ms: 0.001, min_queries: 100}"
    failed = run(quick_config(f"loadgen=[{starved}]", "optimize=[]", "quantize=[]"))
    assert (failed.verdict, failed.stopped_at) == ("failed", "loadgen")
    assert "performance constraints not met" in failed.reason
    assert [stage.stage for stage in failed.stages[-2:]] == ["select", "loadgen"]
    assert failed.winner is None
