"""What changed is done again, and what follows from it; nothing else is."""

import shutil
from collections.abc import Callable

import pytest
from harness import quick_config

from configs.schema import PipelineConfig
from flows.home import Home
from tasks.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]
NEVER_CACHED = {"benchmark", "explain", "select"}


def repeated(report: RunReport) -> set[str]:
    """The work that was done: stage, or stage and candidate."""
    return {f"{e.stage} {e.candidate}" if e.candidate else e.stage for e in report.stages if not e.cached}


def test_second_run_repeats_only_benchmark_and_choice(run: Run) -> None:
    assert repeated(run(quick_config())) == NEVER_CACHED


@pytest.mark.slow
def test_changed_benchmark_repeats_the_benchmark_only(run: Run) -> None:
    assert repeated(run(quick_config("benchmark.rounds=7"))) == NEVER_CACHED


def test_changed_quantiser_repeats_that_quantiser_and_what_follows(run: Run) -> None:
    report = run(quick_config("quantize.0.per_channel=false"))
    name = "static-u8s8-per-tensor"
    follows = ("quantize", "structure", "accuracy", "portability")
    assert repeated(report) == NEVER_CACHED | {f"{stage} {name}" for stage in follows}


@pytest.mark.slow
def test_changed_gate_repeats_the_gated_stage_only(run: Run) -> None:
    assert repeated(run(quick_config("evaluate.min_accuracy=0.5"))) == NEVER_CACHED | {"evaluate"}


@pytest.mark.slow
def test_lost_artifact_is_made_again(run: Run, home: Home) -> None:
    export = run(quick_config()).stage("export")
    assert export is not None
    model = export.artifacts["model"]
    shutil.rmtree(home.store.path(model).parent)
    again = run(quick_config())
    assert "export" in repeated(again)
    assert home.store.intact(model)  # exporting is deterministic, so the same file is back


@pytest.mark.slow
def test_fresh_run_uses_nothing_of_earlier_runs(run: Run) -> None:
    from flows.run import FRESH

    token = FRESH.set(True)
    try:
        report = run(quick_config("train.epochs=1", "evaluate.min_accuracy=0", "evaluate.min_recall=0"))
    finally:
        FRESH.reset(token)
    assert {"data", "train", "evaluate", "export"} <= repeated(report)
