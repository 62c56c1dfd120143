"""The serve gate as the last stage of a real run."""

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
FP32_ONLY = ("optimize=[]", "quantize=[]")
LOAD = "min_duration_s: 0.5, min_queries: 500"


@pytest.mark.slow
def test_run_serves_its_bundle_and_records_what_the_service_adds(run: Run, home: Home) -> None:
    report = run(quick_config(*FP32_ONLY, f"serve={{objective: {{p99_ms: 60000, rate: 100}}, {LOAD}}}"))
    assert (report.verdict, [stage.stage for stage in report.stages[-2:]]) == ("passed", ["package", "serve"])
    facts = report.stages[-1].facts
    assert facts["verdict"] == "proven within"
    assert 'id="serving"' in render_html(report)
    client = MlflowClient(home.mlflow_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    [parent] = [r for r in client.search_runs(experiments) if r.data.tags["stage"] == "pipeline"]
    assert parent.data.metrics["serving.added_p50_ms"] == pytest.approx(facts["cost"]["added_p50_ms"])
    assert parent.data.metrics["gate.serve.p99_ms"] == parent.data.metrics["serving.p99.high_ms"]


@pytest.mark.slow
def test_run_fails_where_its_service_cannot_keep_the_objective(run: Run) -> None:
    report = run(quick_config(*FP32_ONLY, f"serve={{objective: {{p99_ms: 0.001, rate: 100}}, {LOAD}}}"))
    assert (report.verdict, report.stopped_at, report.winner) == ("failed", "serve", None)
    assert "proven beyond" in report.reason
