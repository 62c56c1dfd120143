"""The Prefect flow `promote`, with a real server: it does what the command does, and fails with the reason."""

import contextlib
from pathlib import Path

import pytest
from graded_bundles import make_bundle, run_report
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow_sync

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.ledger import Ledger
from wings.lifecycle.prefect_flows import promotion
from wings.lifecycle.prefect_flows.promotion import promote

pytestmark = pytest.mark.slow
OVERRIDDEN = Check.of("accuracy.max_accuracy_drop", 0.03, "<=", 0.01).replace(override="ticket 7")


@pytest.fixture
def bundle(prefect_server: str, stored: Home, tmp_path: Path) -> Bundle:
    """A bundle with an overridden gate, and a home with MLflow's tables."""
    return make_bundle(tmp_path / "b", report=run_report("run-1", OVERRIDDEN))


def test_flow_promotes_and_shows_its_decision(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(GateFailed, match="overridden_gates"):
        promote(str(bundle.folder), name="digits")
    assert promote(str(bundle.folder), name="digits", why="test fleet") == "1"
    client = MlflowClient(Home(tmp_path / "home").mlflow_uri)
    assert dict(client.get_registered_model("digits").aliases) == {"champion": 1}
    with get_client(sync_client=True) as prefect:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["promotion"]))
        texts = [str(artifact.data) for artifact in prefect.read_artifacts(artifact_filter=key)]
    assert any(text.startswith("Refused.") and "overridden_gates" in text for text in texts)
    assert any("Version 1 of digits is now the champion" in text for text in texts)


def test_decision_shows_every_check_that_has_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = list[str]()
    monkeypatch.setattr(promotion, "show_on_page", lambda create: create())
    monkeypatch.setattr(promotion, "create_markdown_artifact", lambda markdown, **_: texts.append(markdown))
    none_lost, unknown = Check.of("promote.max_loss", 0.0, "<=", 0.01), Check.of("promote.gain", None, ">", 0.0)
    promotion.show_decision("promotion", "Done.", [none_lost, unknown])
    assert texts[0].splitlines()[4:] == ["| promote.max_loss | 0 | <= 0.01 |  |"]


@pytest.mark.parametrize("approved", [True, False])
def test_suspended_flow_run_waits_for_a_person_and_does_what_they_enter(
    bundle: Bundle, tmp_path: Path, approved: bool
) -> None:
    """As a worker runs it: the process ends when the run is suspended, and another one goes on."""
    model, parameters = f"approved-{approved}", {"source": str(bundle.folder), "why": "test fleet", "approve": True}
    with get_client(sync_client=True) as prefect:
        deployment = prefect.create_deployment(prefect.create_flow(promote), "promote")
        run = prefect.create_flow_run_from_deployment(deployment, parameters=parameters | {"name": model})
        assert state_after(run) == "Suspended"
        assert [entry.op for entry in Ledger.of(tmp_path / "home", model).entries()] == ["ask"]
        resumed = prefect.resume_flow_run(run.id, run_input={"approve": approved, "who": "bert", "why": "tried it"})
        assert resumed.status.value == "ACCEPT"
        assert state_after(prefect.read_flow_run(run.id)) == ("Completed" if approved else "Failed")
    _, answer, *_ = Ledger.of(tmp_path / "home", model).entries()
    verb = "approved" if approved else "refused"
    assert (answer.op, answer.cause, answer.why) == ("promote" if approved else "refuse", f"{verb} by bert", "tried it")


def state_after(run: FlowRun) -> str:
    """Run a flow run and return the name of the state in which that ends."""
    with contextlib.suppress(Pause):
        run_flow_sync(promote, run, parameters=run.parameters, return_type="state")
    with get_client(sync_client=True) as prefect:
        return str(prefect.read_flow_run(run.id).state.name)
