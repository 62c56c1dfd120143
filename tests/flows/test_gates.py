"""Every gate is seen failing in the real pipeline, with a real defect, and nothing behind it runs."""

import re
from collections.abc import Callable
from typing import Any

import mlflow
import onnx
import pytest
from harness import quick_config
from onnx import numpy_helper

from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.workspace import Workspace

Run = Callable[[PipelineConfig], RunReport]
MAIN_LINE = ["data", "train", "evaluate", "export", "normalize", "structure", "numerics"]


@pytest.fixture
def with_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the pipeline's exporter by one that damages what it exports; all else is the real thing."""
    from flows.search import base
    from tasks import export as exporting
    from tasks.export import ExportConfig, ExportFacts

    def export(config: ExportConfig, out: Workspace, *, model: Artifact, **inputs: Any) -> Report[ExportFacts]:
        report = exporting.export(config, out, model=model, **inputs)
        proto = onnx.load(out.path(report.artifacts["model"]))
        weight = next(t for t in proto.graph.initializer if len(t.dims) == 4)
        values = numpy_helper.to_array(weight).copy()
        values.flat[0] += 1.0
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        path = out.folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return report.replace(artifacts={"model": out.store_file(path)})

    monkeypatch.setattr(base, "export", export)


def stages_of(report: RunReport) -> list[str]:
    return [entry.stage for entry in report.stages]


def failed_checks(report: RunReport) -> set[str]:
    return {check.name for entry in report.stages for check in entry.checks if check.blocks}


@pytest.mark.slow
def test_pipeline_stops_when_the_exporter_damages_the_model(run: Run, with_defect: None) -> None:
    report = run(quick_config())
    assert (report.verdict, report.stopped_at, report.winner) == ("failed", "numerics", None)
    assert "numerics.max_rel_error" in failed_checks(report)
    assert stages_of(report) == MAIN_LINE
    assert "numerics.max_rel_error" in report.reason
    assert "module '0'" in str(report.stages[-1].facts["first_divergence"])


def test_pipeline_stops_when_a_limit_is_not_met(run: Run, home: Home) -> None:
    report = run(quick_config("evaluate.min_accuracy=1.0"))
    assert (report.verdict, report.stopped_at) == ("failed", "evaluate")
    assert stages_of(report)[-1] == "evaluate"
    parent = mlflow.MlflowClient(home.mlflow_uri).search_runs(["1"], "tags.stage = 'pipeline'")[0]
    assert parent.info.status == "FAILED"
    assert parent.data.tags["gate"] == "fail"
    assert parent.data.tags["gate.reason"] == report.reason


@pytest.mark.slow
def test_pipeline_stops_when_no_model_is_within_the_budget(run: Run) -> None:
    fp32 = ("optimize=[]", "quantize=[]", "tracking.experiment=budgets")
    report = run(quick_config(*fp32, "budget={max_p50_ms: {1: 1.0e-6}, max_size_mb: 100, max_p90_ms: {1: 1.0e+6}}"))
    assert (report.verdict, report.stopped_at, report.winner) == ("failed", "select", None)
    assert re.search(r"^budget\.max_p50_ms: .* fp32 on ort-cpu at batch 1; no candidate is within", report.reason)
    assert failed_checks(report) == {"budget.max_p50_ms"}
    [row] = report.candidates[0].benchmark  # the figures are in the report of a failed run, too
    assert row.calls >= 29
    assert row.p90_ms >= row.median_ms > 0
    assert row.images_per_second == pytest.approx(1000 / row.mean_ms)
    assert row.peak_rss_bytes > 10e6


@pytest.mark.slow
def test_static_recipes_are_dropped_and_the_others_go_on_when_the_calibration_fails(run: Run) -> None:
    report = run(quick_config("optimize=[]", "calibrate.images=1", "calibrate.strict=true"))
    calibrated = report.stage("calibrate")
    assert "calibrate.max_range_change" in [c.name for c in calibrated.checks if c.blocks]
    by_name = {c.name: c for c in report.candidates}
    assert (report.verdict, report.stopped_at) == ("passed", None)
    assert "static quantization needs activation ranges; the calibration failed" in by_name["static-u8s8"].reason
    assert by_name["dynamic-s8"].benchmark != ()


@pytest.mark.slow
def test_slower_candidate_is_rejected_and_the_run_fails_where_a_speedup_is_required(run: Run) -> None:
    report = run(quick_config("optimize=[]", "quantize=[{kind: dynamic, weights: s8}]", "select.require_speedup=true"))
    slow = next(c for c in report.candidates if c.name == "dynamic-s8")
    assert slow.benchmark[0].verdict == "slower"
    assert slow.status == "rejected"
    assert re.search(r"slower( than fp32)?: 0\.", slow.reason)  # at the end, or when it was dropped
    assert [c.name for c in report.candidates if c.status == "accepted"] == ["fp32"]
    assert (report.verdict, report.stopped_at) == ("failed", "select")
    assert "select.min_speedup" in report.reason
