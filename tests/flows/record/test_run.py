"""The record of a run: what it tells its listeners, and what a stage's facts change in a candidate."""

import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import journal

from configs.schema import PipelineConfig
from flows.record.environment import package_versions
from flows.record.home import Home, new_run_id
from flows.record.locks import locked
from flows.record.report_files import PARETO_FILE, REPORT_FILES
from flows.record.run import CANCELLED, INTERRUPTED, Run, restore_run
from gauntlet.core.artifact import Artifact
from gauntlet.core.candidate import Candidate, contenders_of
from gauntlet.core.errors import GateFailed, StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.problems.accuracy_comparison import OutputQuality
from tasks.accuracy import AccuracyFacts

MODEL = Artifact(name="model.onnx", sha256="ab" * 32, size_bytes=3, path="ab/abab/model.onnx")
ACCURACY = AccuracyFacts(
    images=4, accuracy=0.75, reference_accuracy=1.0, outputs=(OutputQuality(output="y", sqnr_db=30.0),), flips=()
)
FP32 = Candidate("fp32", None, "fp32", model=MODEL, accuracy=1.0, status="accepted", reason="the reference")
STATIC = Candidate("static", "fp32", "fp32")
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
    run.record_candidate(STATIC)
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


def test_candidate_is_recorded_as_it_stands(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.record_candidate(STATIC)
    run.record_candidate(replace(STATIC, model=MODEL, accuracy=0.75, sqnr_db=30.0, differences="1 of 4"))
    entry = run.candidates["static"]
    assert (entry.artifact, entry.size_bytes, entry.accuracy, entry.sqnr_db) == (MODEL, 3, 0.75, 30.0)
    assert (entry.status, entry.differences) == ("not decided", "1 of 4")


def test_override_holds_for_one_candidate_only(open_run: Callable[..., Run]) -> None:
    reason = "ticket 7: shipped to a test fleet only"
    run = open_run(overrides=[{"check": DROP.name, "reason": reason, "candidate": "ort-extended"}])
    assert not run.overridden(DROP, "ort-extended").blocks
    assert run.overridden(DROP, "ort-extended").override == reason
    assert run.overridden(DROP, "static-s8s8").blocks


def test_report_has_the_order_of_the_code_whichever_line_is_first(open_run: Callable[..., Run]) -> None:
    lines = [f"recipe-{number}" for number in range(8)]
    listener = Listener()
    run = open_run(listener)
    together = threading.Barrier(len(lines))

    def line(number: int) -> None:
        together.wait(timeout=60)
        for step in range(20):
            if step == 0:
                run.record_candidate(Candidate(lines[number], "fp32", "fp32", accuracy=0.5), (1, number))
            run.progress("prune", step, {"loss": 0.5})
            run.record(Report(stage=f"s{step}", facts=ACCURACY, candidate=lines[number]), (1, number, step))

    run.record_candidate(FP32)
    with ThreadPoolExecutor(len(lines)) as threads:
        done = [threads.submit(line, number) for number in reversed(range(len(lines)))]
    assert [each.result() for each in done] == [None] * len(lines)
    run.record(Report(stage="benchmark", facts=ACCURACY), (2,))
    report = run.report(None, {})
    assert [c.name for c in report.candidates] == ["fp32", *lines]
    expected = [(name, f"s{step}") for name in lines for step in range(20)]
    assert [(s.candidate, s.stage) for s in report.stages] == [*expected, (None, "benchmark")]
    opened = {name: listener.told.index(("candidate opened", name)) for name in lines}
    assert all(c.accuracy == 0.5 for c in report.candidates[1:])
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


def test_report_of_a_run_that_a_signal_ended_is_cancelled(open_run: Callable[..., Run]) -> None:
    assert open_run().report(StageError(CANCELLED)).verdict == "cancelled"
    assert open_run().report(StageError(INTERRUPTED)).verdict == "failed"


def test_run_that_was_killed_is_restored_from_what_it_saved(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.open()
    dynamic = replace(STATIC, name="dynamic", accuracy=0.5)
    run.record_candidate(FP32, (1,))
    run.record_candidate(replace(STATIC, accuracy=0.75), (2,))
    run.record_candidate(dynamic, (3,))
    run.record(Report(stage="accuracy", facts=ACCURACY, candidate="static"), (2, 0))
    run.record(Report(stage="accuracy", facts=ACCURACY, candidate="dynamic", checks=(DROP,)), (3, 0))
    run.record_candidate(replace(dynamic, status="rejected", reason="too inaccurate"), (3,))
    expected = run.report(StageError(INTERRUPTED))

    report = restore_run(run.home, run.folder).report(StageError(INTERRUPTED))
    assert (report.verdict, report.reason, report.winner) == ("failed", INTERRUPTED, None)
    assert report.stages == expected.stages
    assert report.candidates == expected.candidates
    assert [c.accuracy for c in report.candidates] == [1.0, 0.75, 0.5]
    assert (report.config, report.started_at) == (expected.config, expected.started_at)


def test_candidate_that_no_gate_has_judged_is_not_decided_when_the_run_ends(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.record_candidate(FP32)
    run.record_candidate(replace(STATIC, model=MODEL))
    found = [(one.status, one.reason) for one in run.report(StageError("cancelled")).candidates]
    assert found == [("accepted", "the reference"), ("not decided", "the run ended before the selection")]


def test_candidates_with_a_file_that_nothing_speaks_against_are_raced() -> None:
    made = replace(STATIC, model=MODEL)
    unchanged, rejected = (replace(made, name=status, status=status) for status in ("unchanged", "rejected"))
    late = replace(STATIC, name="late")
    assert [*contenders_of((FP32, made, unchanged, rejected, late))] == ["fp32", "static"]


def test_nothing_is_saved_beside_the_report_of_a_run_that_ended(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.open()
    assert run.saved.path.exists()
    run.close(run.report(None, {}))
    assert not run.saved.path.exists()


def test_new_home_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    Home(tmp_path / "home").create()
    with locked(Home(tmp_path / "other").locks / "first"):
        assert [folder.stat().st_mode & 0o777 for folder in tmp_path.iterdir()] == [0o700, 0o700]


def test_environment_holds_the_versions_of_the_packages_that_the_project_asks_for() -> None:
    found = package_versions()
    assert found["numpy"] == np.__version__
    assert {"onnx", "prefect", "scikit-learn", "pytest"} <= found.keys()
    assert all(found.values())


def test_run_leaves_the_chart_of_its_candidates_and_sends_it(finished_home: Path) -> None:
    pytest.importorskip("wings.drawings")
    folder = Home(finished_home / ".gauntlet").finished_run()
    assert folder is not None
    assert all((folder / name).is_file() for name in (*REPORT_FILES, PARETO_FILE))
    root = ET.parse(folder / PARETO_FILE).getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"latency of one call, ms", "file size, MB"} <= texts
    sent = [event for event in journal(folder) if event["op"] == "file" and event["path"].endswith(PARETO_FILE)]
    assert [event["folder"] for event in sent] == ["pictures"]
