"""The record of a run: what it tells its listeners, and what a stage's facts change in a candidate."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from configs.schema import PipelineConfig
from flows.record.home import Home, new_run_id
from flows.record.run import Run
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.problems.accuracy_comparison import OutputQuality
from tasks.accuracy import AccuracyFacts
from tasks.quantize import QuantizeFacts

MODEL = Artifact(name="model.onnx", sha256="ab" * 32, size_bytes=3, path="ab/abab/model.onnx")
ACCURACY = AccuracyFacts(
    images=4,
    accuracy=0.75,
    reference_accuracy=1.0,
    top1_agreement=0.75,
    outputs=(OutputQuality(output="y", sqnr_db=30.0, cosine=1.0, top1_agreement=0.75),),
    paired=None,
    flips=(),
)
DROP = Check(name="accuracy.max_accuracy_drop", value=0.25, op="<=", limit=0.01)


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def opened(self, run_id: str) -> None:
        self.told.append(("opened", run_id))

    def stage_recorded(self, report: Report[Any]) -> None:
        self.told.append(("stage recorded", report.stage))

    def candidate_opened(self, candidate: CandidateEntry) -> None:
        self.told.append(("candidate opened", candidate.name))

    def progressed(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self.told.append(("progressed", (stage, step, dict(metrics))))

    def closed(self, report: RunReport) -> None:
        self.told.append(("closed", report.verdict))


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[..., Run]:
    def make(*listeners: Listener, **config: Any) -> Run:
        return Run(new_run_id("m"), Home(tmp_path), PipelineConfig.model_validate(config), listeners=listeners)

    return make


def test_listeners_are_told_everything_in_order(open_run: Callable[..., Run]) -> None:
    first, second = Listener(), Listener()
    run = open_run(first, second)
    run.open()
    run.add_candidate("static", "fp32")
    run.progress("train", 3, {"loss": 0.5})
    run.record(Report(stage="accuracy", facts=ACCURACY, candidate="static"))
    run.close(run.report(None, {}))
    assert first.told == [
        ("opened", run.id),
        ("candidate opened", "static"),
        ("progressed", ("train", 3, {"loss": 0.5})),
        ("stage recorded", "accuracy"),
        ("closed", "passed"),
    ]
    assert second.told == first.told


def test_candidate_takes_its_quality_from_the_type_of_the_facts(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.add_candidate("static", "fp32")
    made = QuantizeFacts.model_construct()
    run.record(Report(stage="quantize", facts=made, candidate="static", artifacts={"model": MODEL}))
    run.record(Report(stage="any name", facts=ACCURACY, candidate="static"))
    entry = run.candidates["static"]
    assert (entry.artifact, entry.size_bytes, entry.accuracy, entry.sqnr_db) == (MODEL, 3, 0.75, 30.0)


def test_rejection_and_override_hold_for_one_candidate_only(open_run: Callable[..., Run]) -> None:
    reason = "ticket 7: shipped to a test fleet only"
    run = open_run(overrides=[{"check": DROP.name, "reason": reason, "candidate": "static-u8s8"}])
    for name in ("static-u8s8", "static-s8s8"):
        run.add_candidate(name, "fp32")
        checks = (run.overridden(DROP, name),)
        run.record(Report(stage="accuracy", facts=ACCURACY, candidate=name, checks=checks))
    assert not run.rejected_by("accuracy", "static-u8s8")
    assert run.rejected_by("accuracy", "static-s8s8")
    assert run.stages[0].checks[0].override == reason


def test_report_has_the_order_of_the_code_whichever_line_is_first(open_run: Callable[..., Run]) -> None:
    lines = [f"recipe-{number}" for number in range(8)]
    listener = Listener()
    run = open_run(listener)
    together = threading.Barrier(len(lines))

    def line(number: int) -> None:
        together.wait(timeout=60)
        for step in range(20):
            if step == 0:
                run.add_candidate(lines[number], "fp32", (1, number))
            run.progress("prune", step, {"loss": 0.5})
            run.record(Report(stage=f"s{step}", facts=ACCURACY, candidate=lines[number]), (1, number, step))

    run.add_candidate("fp32", None)
    with ThreadPoolExecutor(len(lines)) as threads:
        done = [threads.submit(line, number) for number in reversed(range(len(lines)))]
    assert [each.result() for each in done] == [None] * len(lines)
    run.record(Report(stage="benchmark", facts=ACCURACY), (2,))
    report = run.report(None, {})
    assert [c.name for c in report.candidates] == ["fp32", *lines]
    expected = [(name, f"s{step}") for name in lines for step in range(20)]
    assert [(s.candidate, s.stage) for s in report.stages] == [*expected, (None, "benchmark")]
    opened = {name: listener.told.index(("candidate opened", name)) for name in lines}
    assert all(c.accuracy == ACCURACY.accuracy for c in report.candidates[1:])
    assert len(opened) == len(lines)
    assert len(listener.told) == 1 + len(lines) * 41 + 1


def test_lines_with_the_same_work_do_it_one_after_the_other(open_run: Callable[..., Run]) -> None:
    run, inside = open_run(), 0

    def work() -> int:
        nonlocal inside
        with run.only("key"):
            inside += 1
            seen = inside
            threading.Event().wait(0.001)
            inside -= 1
        return seen

    with ThreadPoolExecutor(8) as threads:
        assert {done.result() for done in [threads.submit(work) for _ in range(40)]} == {1}


def test_report_of_a_run_that_ended_early_names_the_stage_and_the_reason(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.at_stage = "numerics"
    report = run.report(GateFailed(str(DROP)), {"MLflow run": "http://127.0.0.1:5000/#/runs/1"})
    assert (report.verdict, report.stopped_at, report.winner) == ("failed", "numerics", None)
    assert report.reason == str(DROP)
    assert list(report.links) == ["MLflow run"]
