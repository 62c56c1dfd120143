"""The Prefect flow `promote`, with a real server: it does what the command does, and fails with the reason."""

from pathlib import Path

import pytest
from graded_bundles import make_bundle, run_report
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Check
from wings.lifecycle.prefect_flows.promotion import promote

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
