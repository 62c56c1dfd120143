"""The seam, with stages of three lines: what is tried again, what is done again, and what a gate stops."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import Seam
from fake_stages import Nothing
from harness import latest_report, quick_config
from mlflow import MlflowClient
from prefect import flow

from configs.schema import PipelineConfig
from flows.failure import ENGINES
from flows.record.home import Home
from flows.record.run import Run
from flows.recording import recording
from flows.stage import Line
from gauntlet.core.candidate import Candidate
from gauntlet.core.errors import GateFailed, StageError
from gauntlet.core.facts import Facts, Metrics, Section
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace

REASON = "ticket 42: the data are easier"
CALLS: list[Any] = []
"""The configurations of the calls so far."""


def write(config: str, workspace: Workspace) -> Report[Nothing]:
    CALLS.append(config)
    path = workspace.folder / "text"
    path.write_text(config)
    return Report(facts=Nothing(), artifacts={"text": workspace.store_file(path)})


def score(config: float, workspace: Workspace) -> Report[Nothing]:
    CALLS.append(config)
    return Report(facts=Nothing(), checks=(Check.of("score.min", config, ">=", 1),))


def hurry(config: str, workspace: Workspace) -> Report[Nothing]:
    CALLS.append(config)
    return Report(facts=Nothing(), timed=True)


@stage(measured=True)
def measure(config: str, workspace: Workspace) -> Report[Nothing]:
    CALLS.append(config)
    return Report(facts=Nothing())


def is_even(config: int, workspace: Workspace, *, known: Nothing) -> bool:
    return config % 2 == 0


@stage(measured=True, still_holds=is_even)
def measure_again(config: int, workspace: Workspace) -> Report[Nothing]:
    CALLS.append(config)
    return Report(facts=Nothing())


def fragile(config: tuple[str, int], workspace: Workspace) -> Report[Nothing]:
    """Fail the first times: with an error of this project where the words end with a full stop, else with a crash."""
    CALLS.append(config)
    words, times = config
    if len(CALLS) <= times:
        raise StageError(words) if words.endswith(".") else OSError(words)
    return Report(facts=Nothing())


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def test_crash_is_tried_again_and_the_run_goes_on(seam: Seam) -> None:
    seam(lambda line: line.stage(fragile, ("the disk was away for a moment", 1)))
    assert len(CALLS) == 2


@pytest.mark.parametrize(("reason", "calls"), [("OSError: the disk is gone", 2), ("it is not readable.", 1)])
def test_crash_that_stays_names_the_stage_and_a_clear_error_ends_at_once(seam: Seam, reason: str, calls: int) -> None:
    with pytest.raises(StageError) as error:
        seam(lambda line: line.stage(fragile, (reason.removeprefix("OSError: "), 9)))
    assert str(error.value) == f"fragile: {reason}"
    assert len(CALLS) == calls


def test_verdict_is_recorded_and_not_tried_again(seam: Seam, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Run] = []
    logging.getLogger(ENGINES[1]).addHandler(caplog.handler)

    def body(line: Line) -> None:
        seen.append(line.run)
        line.stage(score, 0.5)
        line.stage(write, "behind the gate")

    with pytest.raises(GateFailed, match=r"score\.min"):
        seam(body)
    assert CALLS == [0.5]
    assert [(entry.stage, entry.checks[0].passed) for entry in seen[0].stages] == [("score", False)]
    lines = {record.getMessage() for record in caplog.records if record.name == ENGINES[1]}
    assert lines == {"Finished in state Completed()", "Finished in state Failed('score.min: 0.5 must be >= 1')"}


def test_overridden_check_lets_the_line_pass_and_stays_on_record(seam: Seam, caplog: pytest.LogCaptureFixture) -> None:
    config = PipelineConfig.model_validate({"overrides": [{"check": "score.min", "reason": REASON}]})
    caplog.set_level(logging.INFO, logger="gauntlet")
    [entry] = seam(lambda line: line.stage(score, 0.5), config).stages
    assert (entry.checks[0].passed, entry.checks[0].override) == (False, REASON)
    assert "score passed, 1 check, 1 with a warning (" in caplog.text


def test_same_work_is_done_once_and_a_changed_configuration_is_other_work(seam: Seam) -> None:
    cached = [seam(lambda line, text=text: line.stage(write, text)).stages[0].cached for text in ("a", "a", "b")]
    assert cached == [False, True, False]
    assert CALLS == ["a", "b"]


@pytest.mark.slow
def test_what_was_measured_is_kept_while_it_still_holds_on_the_same_host(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [seam(lambda line: line.stage(measure_again, 2)).stages[0].cached for _ in range(2)] == [False, True]
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert not seam(lambda line: line.stage(measure_again, 2)).stages[0].cached


@pytest.mark.parametrize(
    ("call", "fresh"),
    [
        (lambda line: line.stage(write, "a"), True),
        (lambda line: line.stage(hurry, "a"), False),
        (lambda line: line.stage(measure, "a"), False),
        (lambda line: line.stage(measure_again, 1), False),
        (lambda line: line.stage(measure_again, 2), True),
    ],
    ids=["fresh run", "a clock decided", "measured", "no longer holds", "measured in a fresh run"],
)
def test_work_is_repeated_where_no_earlier_result_may_stand_for_it(
    seam: Seam, call: Callable[..., Any], fresh: bool
) -> None:
    for _ in range(2):
        seam(call, fresh=fresh)
    assert len(CALLS) == 2


def test_candidate_that_fails_or_breaks_is_dropped_and_its_siblings_go_on(seam: Seam) -> None:
    def body(line: Line) -> None:
        for name, function, config in (
            ("worse", score, 0.5), ("broken", fragile, ("no such pattern.", 9)), ("good", score, 2.0),
        ):  # fmt: skip
            with line.attempt(Candidate(name, "fp32", "fp32")) as branch:
                branch.stage(function, config)

    run = seam(body)
    assert [(entry.candidate, entry.checks[0].passed) for entry in run.stages] == [("worse", False), ("good", True)]
    dropped = {name: (candidate.status, candidate.reason) for name, candidate in run.candidates.items()}
    assert dropped["worse"] == ("rejected", "score.min: 0.5 must be >= 1")
    assert dropped["broken"] == ("rejected", "fragile broke: no such pattern.")
    assert dropped["good"] == ("not decided", "")


@pytest.mark.slow
def test_gate_is_judged_once_whatever_the_settings_of_prefect_say() -> None:
    code = "from flows.stage import _gate_node; print(_gate_node.with_options(name='a gate').retries)"
    more = os.environ | {"PREFECT_TASKS_DEFAULT_RETRIES": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=more, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


class WeighConfig(Frozen):
    """The limit of the stage."""

    max_kg: float = 2.0


class WeighFacts(Facts):
    """What it found."""

    kg: float

    def metrics(self) -> Metrics:
        """Return the weight."""
        return {"weight.kg": self.kg}

    def section(self) -> Section:
        """Return the weight as a table."""
        return Section("Weight", ("Part", "Mass"), (("<all>", f"{self.kg} kg"),))

    def headline(self) -> str:
        """Return the weight."""
        return f"weighs {self.kg} kg"


@stage(any_processor=True)
def weigh(config: WeighConfig, workspace: Workspace, *, kg: float) -> Report[WeighFacts]:
    """Weigh something."""
    (workspace.folder / "note.txt").write_text("weighed")
    checks = (Check.of("weigh.max_kg", kg, "<=", config.max_kg),)
    note = workspace.store_file(workspace.folder / "note.txt")
    return Report(facts=WeighFacts(kg=kg), checks=checks, artifacts={"note": note})


@flow(name="gauntlet", persist_result=False)
def weigh_twice() -> None:
    """Run the stage; the second time, nothing is left to do."""
    with recording(quick_config()) as run:
        Line(run).stage(weigh, WeighConfig(), kg=1.5)
        assert Line(run).stage(weigh, WeighConfig(), kg=1.5).cached


def test_new_stage_is_in_the_report_in_mlflow_and_on_the_page(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    home = Home(tmp_path)
    weigh_twice()
    report = latest_report(home)
    assert [(entry.stage, entry.facts, entry.cached) for entry in report.stages] == [
        ("weigh", {"kg": 1.5}, False),
        ("weigh", {"kg": 1.5}, True),
    ]
    client = MlflowClient(home.mlflow_uri)
    [recorded] = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert {"weight.kg": 1.5, "gate.weigh.max_kg": 1.5}.items() <= recorded.data.metrics.items()
    assert "seconds.weigh" in recorded.data.metrics
    assert client.list_artifacts(recorded.info.run_id, "artifacts/weigh/note")
    page = (home.runs / report.run_id / "report.html").read_text()
    assert '<h2 id="of-weigh">Weight</h2>' in page
    assert "&lt;all&gt;" in page
    assert "weighs 1.5 kg" in page
    assert "| &lt;all&gt; | 1.5 kg |" in (home.runs / report.run_id / "report.md").read_text()
