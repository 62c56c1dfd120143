"""SIGKILL in a stage, then the same command: it finishes, repeats nothing, and says the same.

All stages go through one seam, so it is killed there with stages of three lines, and in one of the real pipeline.
"""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fake_runs import fake_run, waiting_run
from harness import journal
from prefect.client.orchestration import get_client

from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from gauntlet.core.shipping import configured_stages

ORDER = ("data", "train", "evaluate", "export", "normalize", "structure", "numerics", "optimize")
ORDER += ("accuracy", "calibrate", "quantize", "benchmark", "explain", "select", "package")


def test_every_stage_goes_through_the_seam_that_is_killed_below(finished_home: Path) -> None:
    run = Home(finished_home / ".gauntlet").finished_run()
    assert run is not None
    started, finished = (
        {(e["stage"], e["key"]) for e in journal(run) if e["op"] == op} for op in ("work_started", "work_finished")
    )
    assert started == finished
    assert {stage for stage, _ in started} == {*ORDER} | {*configured_stages(PipelineConfig(), "quantized")}


@pytest.mark.parametrize("stage", ["make", pytest.param("race", marks=pytest.mark.slow)])
def test_work_that_a_killed_run_has_finished_is_not_repeated(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """In a candidate's stage, and in a measured one."""
    process, _ = waiting_run(tmp_path, stage)
    process.kill()
    process.wait()
    home = Home(tmp_path)
    [killed] = home.run_folders()
    assert not (killed / "report.json").exists()
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    fake_run(PipelineConfig())
    [again] = set(home.run_folders()) - {killed}
    report = RunReport.model_validate_json((again / "report.json").read_bytes())
    made = [("begin", None), ("make", "worse"), ("make", "good"), ("make", "better"), ("race", None)]
    assert [(entry.stage, entry.candidate) for entry in report.stages] == made
    finished, cached = ({e["key"] for e in journal(run) if done(e)} for run, done in ((killed, ended), (again, reused)))
    assert len(finished) == (1 if stage == "make" else 4)
    assert cached == finished
    assert_closed(killed)


def ended(event: dict[str, Any]) -> bool:
    return bool(event["op"] == "work_finished")


def reused(event: dict[str, Any]) -> bool:
    return ended(event) and event["cached"]


def assert_closed(killed: Path) -> None:
    """Neither MLflow nor Prefect shows the run as running."""
    assert journal(killed)[-1]["status"] == "KILLED"
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(journal(killed)[0]["tags"]["prefect.flow_run_id"])).state
    assert state.type.value == "CRASHED"
