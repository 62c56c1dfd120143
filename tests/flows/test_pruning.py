"""Pruned networks walk the whole line by themselves: each has a parent, gates of its own, and INT8 children."""

from collections.abc import Callable

import pytest
from harness import quick_config

from configs.schema import PipelineConfig
from gauntlet.core.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]
LINE = ["prune", "evaluate", "export", "normalize", "structure", "numerics", "accuracy"]
SETTINGS = (
    "optimize=[]",
    "quantize=[{kind: static, reduce_range: true}, {kind: dynamic}]",  # as much noise on every processor
    "accuracy.max_accuracy_drop=0.1",
    "evaluate.min_accuracy=0.7",
    "evaluate.min_recall=0.3",
)
DEPLOYED = (
    "benchmark.targets=[ort-cpu, {kind: ort-cpu, spinning: false}]",
    "benchmark.deploy_targets=[ort-cpu-nospin]",
)
HALF = "{kind: structured, macs_fraction: 0.5, round_to: 8, epochs: 3, learning_rate: 0.005}"
RUINED = "{kind: structured, macs_fraction: 0.02, round_to: 1, epochs: 1, learning_rate: 1.0e-9}"
TOO_FAR = "{kind: structured, macs_fraction: 0.05, round_to: 16}"


def stages_of(report: RunReport, candidate: str) -> list[str]:
    return [entry.stage for entry in report.stages if entry.candidate == candidate]


@pytest.mark.slow
def test_pruned_line_goes_through_every_gate_and_is_quantized_with_ranges_of_its_own(run: Run) -> None:
    report = run(quick_config(*SETTINGS, *DEPLOYED, f"prune=[{HALF}]"))
    parents = {candidate.name: candidate.parent for candidate in report.candidates}
    assert parents == {
        "fp32": None,
        "static-u8s8-no-overflow": "fp32",
        "dynamic-u8": "fp32",
        "pruned-50": "fp32",
        "pruned-50-static-u8s8-no-overflow": "pruned-50",
    }
    assert report.verdict == "passed"
    assert all(candidate.benchmark for candidate in report.candidates)
    assert [stage for stage in stages_of(report, "pruned-50") if stage != "calibrate"] == LINE
    by_name = {candidate.name: candidate for candidate in report.candidates}
    assert by_name["pruned-50"].size_bytes < by_name["fp32"].size_bytes
    assert by_name["pruned-50"].sqnr_db > 80  # noise is what is added to the pruned network's own answers
    assert 10 < by_name["pruned-50-static-u8s8-no-overflow"].sqnr_db < 80
    race = report.stage("benchmark")
    there = {result["candidate"]: result["validation"]["checks"] for result in race.facts["other_targets"]}
    noise = {
        name: next(c["value"] for c in found if c["name"] == "accuracy.min_sqnr_db") for name, found in there.items()
    }
    assert noise["pruned-50"] > 80  # on the deployment target, too
    assert 10 < noise["pruned-50-static-u8s8-no-overflow"] < 80
    ranges = {e.candidate: e.artifacts["ranges"].sha256 for e in report.stages if e.stage == "calibrate"}
    assert len(set(ranges.values())) == 2


@pytest.mark.nightly
def test_pruned_lines_are_dropped_where_the_budget_ruined_them_or_cannot_be_reached(run: Run) -> None:
    lenient = ("evaluate.min_accuracy=0", "evaluate.min_recall=0")
    report = run(quick_config(*SETTINGS, *lenient, f"prune=[{RUINED}, {TOO_FAR}]"))
    ruined, unreached = report.candidates[-2:]  # without children
    assert (ruined.name, ruined.status, ruined.benchmark) == ("pruned-2", "rejected", ())
    assert "max_accuracy_drop" in ruined.reason
    assert (unreached.name, unreached.status) == ("pruned-5", "rejected")
    assert "prune.macs_fraction" in unreached.reason
    assert "lower prune.round_to, or raise prune.macs_fraction" in unreached.reason
    assert stages_of(report, "pruned-5") == ["prune"]
    assert report.verdict == "passed"  # their siblings went on
