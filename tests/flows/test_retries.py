"""A crash is tried again; a clear error and a verdict are not."""

from collections.abc import Callable
from typing import Any

import pytest
from harness import quick_config

from configs.schema import PipelineConfig
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.workspace import Workspace
from tasks import evaluate as evaluating
from tasks.evaluate import EvaluateConfig, EvaluateFacts

Run = Callable[[PipelineConfig], RunReport]
Fail = Callable[[Exception | None, int], list[int]]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Replaces the evaluation by one that raises the first few times, then works; returns where it counts its calls."""
    from flows import pipeline

    def install(error: Exception | None, times: int) -> list[int]:
        calls: list[int] = []

        def evaluate(config: EvaluateConfig, out: Workspace, **inputs: Any) -> Report[EvaluateFacts]:
            calls.append(len(calls) + 1)
            if error is not None and len(calls) <= times:
                raise error
            return evaluating.evaluate(config, out, **inputs)

        monkeypatch.setattr(pipeline, "evaluate", evaluate)
        return calls

    return install


@pytest.mark.slow
def test_crash_is_tried_again_and_the_run_goes_on(run: Run, failing: Fail) -> None:
    calls = failing(OSError("the disk was away for a moment"), 1)
    assert run(quick_config("optimize=[]", "quantize=[]")).verdict == "passed"
    assert len(calls) == 2


@pytest.mark.slow
def test_crash_that_stays_ends_the_run_and_names_the_stage(run: Run, failing: Fail) -> None:
    calls = failing(OSError("the disk is gone"), 9)
    report = run(quick_config())
    assert (report.verdict, report.stopped_at) == ("failed", "evaluate")
    assert report.reason == "evaluate: OSError: the disk is gone"
    assert len(calls) == 2


def test_clear_error_is_not_tried_again(run: Run, failing: Fail) -> None:
    calls = failing(StageError("predictions.npz: not readable"), 9)
    assert run(quick_config()).reason == "evaluate: predictions.npz: not readable"
    assert len(calls) == 1


def test_verdict_is_not_tried_again(run: Run, failing: Fail) -> None:
    calls = failing(None, 0)
    assert run(quick_config("evaluate.min_accuracy=1.0")).stopped_at == "evaluate"
    assert len(calls) == 1
