"""What changed is done again, and what follows from it; nothing else is."""

import shutil
from collections.abc import Callable

import pytest
from harness import quick_config

from flows.record.home import Home
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.workspace import Workspace
from tasks import structure as checked
from tasks.structure import StructureConfig, StructureFacts

Run = Callable[..., RunReport]
NEVER_CACHED = {"benchmark", "explain", "select", "confirm", "package"}


def repeated(report: RunReport) -> set[str]:
    """The work that was done: stage, or stage and candidate."""
    return {f"{e.stage} {e.candidate}" if e.candidate else e.stage for e in report.stages if not e.cached}


def test_second_run_repeats_only_benchmark_and_choice(run: Run) -> None:
    assert repeated(run(quick_config())) == NEVER_CACHED


@pytest.mark.slow
def test_changed_quantizer_repeats_that_quantizer_and_what_follows(run: Run) -> None:
    report = run(quick_config("quantize.0.per_channel=false"))
    name = "static-u8s8-per-tensor"
    follows = ("quantize", "structure", "accuracy", "portability")
    assert repeated(report) == NEVER_CACHED | {f"{stage} {name}" for stage in follows}


@pytest.mark.slow
def test_changed_gate_repeats_the_gated_stage_only_and_a_changed_benchmark_nothing(run: Run) -> None:
    report = run(quick_config("evaluate.min_accuracy=0.5", "benchmark.rounds=7"))
    assert repeated(report) == NEVER_CACHED | {"evaluate"}


@pytest.mark.slow
def test_lost_artifact_is_made_again(run: Run, home: Home, finished: RunReport) -> None:
    export = finished.stage("export")
    assert export is not None
    model = export.artifacts["model"]
    shutil.rmtree(home.store.path(model).parent)
    again = run(quick_config())
    assert "export" in repeated(again)
    assert home.store.is_intact(model)  # exporting is deterministic, so the same file is back


@pytest.mark.slow
def test_fresh_run_uses_nothing_of_earlier_runs(run: Run) -> None:
    report = run(quick_config("train.epochs=1", "evaluate.min_accuracy=0", "evaluate.min_recall=0"), fresh=True)
    assert {"data", "train", "evaluate", "export"} <= repeated(report)


@pytest.mark.slow
def test_work_in_which_a_clock_decided_is_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import candidates

    def structure(config: StructureConfig, workspace: Workspace, *, model: Artifact) -> Report[StructureFacts]:
        return checked.structure(config, workspace, model=model).replace(timed=True)

    monkeypatch.setattr(candidates, "structure", structure)
    only_export = quick_config("optimize=[]", "quantize=[]")
    for _ in range(2):
        assert "structure" in repeated(run(only_export))
