"""A stage is one file and one line of a flow: the report, MLflow and the page have it without another change."""

from pathlib import Path

import pytest
from harness import latest_report, quick_config
from mlflow import MlflowClient
from prefect import flow

from flows.record.home import Home
from flows.recording import recording
from flows.stage import Line
from gauntlet.core.facts import Facts, Metrics, Section
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace


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
