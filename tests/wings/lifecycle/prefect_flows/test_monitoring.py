"""The Prefect flow monitor, with a real server and registry, and the alarm that it tells until it is answered."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from mlflow import MlflowClient
from monitored_bundles import harmful, images, log_requests, monitored_bundle
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Cancelled, Completed, Scheduled

from flows.record.home import Home
from gauntlet.core.errors import ConfigError, GateFailed
from wings.lifecycle.library.monitoring.monitor_result import FULL, MonitorLimits
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.prefect_flows import alarm_event
from wings.lifecycle.prefect_flows.alarm_event import alarm_id, emit_alarm
from wings.lifecycle.prefect_flows.monitoring import monitor
from wings.lifecycle.registry.promote import PromotionRequest, promote


@pytest.fixture
def champion(prefect_server: str, stored: Home, tmp_path: Path) -> Path:
    """The bundle of the registered model `brightness`, and a home with MLflow's tables."""
    bundle = monitored_bundle(tmp_path / "b")
    promote(stored, PromotionRequest(str(bundle), name="brightness", why="made for this test"))
    return bundle


@pytest.mark.slow
def test_flow_judges_the_champion_and_fails_for_an_alarm(
    champion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings.lifecycle.library.monitoring.monitor.MAX_SAMPLES", 300)
    log = tmp_path / "log"
    log_requests(log, champion, images(1, 100))
    assert monitor("brightness", str(log)) == "no alarm"
    log_requests(log, champion, images(2, 200, (0.7, 1.0)), name="bright")
    with pytest.raises(GateFailed, match="brightness: cannot tell: "):
        monitor("brightness", str(log), MonitorLimits(season_h=0))
    with get_client(sync_client=True) as prefect:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["monitor"]))
        texts = [str(artifact.data) for artifact in prefect.read_artifacts(artifact_filter=key)]
    assert sorted(text.split(":")[0] for text in texts) == ["**Cannot tell**", "**No alarm**"]
    assert sorted(FULL in text for text in texts) == [False, True]


@pytest.mark.slow
def test_flow_rolls_a_harmful_champion_back(champion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, log = Home(tmp_path / "home"), tmp_path / "log"
    worse = monitored_bundle(tmp_path / "worse", bias=1)
    quick = ReplayLimits(
        rounds=6, block_ms=5, max_slowdown=20, max_accuracy_drop=1, max_disagreement=1, max_class_drop=1
    )
    promote(home, PromotionRequest(str(worse), name="brightness", why="made for this test", limits=quick))
    log_requests(log, worse, images(1, 250), wrong=[True] * 250)
    assert champion_of(home) == 2
    limits = MonitorLimits(max_accuracy_drop=0.01)
    with pytest.raises(GateFailed, match="brightness: rolled back to version 1: harmful: the risk is proven"):
        monitor("brightness", str(log), limits, roll_back=True)
    assert champion_of(home) == 1
    with get_client(sync_client=True) as prefect:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["monitor"]))
        texts = [str(artifact.data) for artifact in prefect.read_artifacts(artifact_filter=key)]
    assert any("rolled back to version 1" in text for text in texts)


@pytest.mark.slow
def test_look_before_the_first_champion_and_request_is_empty_only_if_allowed(champion: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert monitor("brightness", str(log), roll_back=True, allow_empty=True) == "brightness: no request is logged yet"
    assert monitor("other", str(log), roll_back=True, allow_empty=True) == "other: there is no champion yet"
    with pytest.raises(ConfigError, match="no request log in it"):
        monitor("brightness", str(log))
    log_requests(log, champion, images(1, 100))
    assert monitor("brightness", str(log), roll_back=True, allow_empty=True) == "no alarm"


def champion_of(home: Home) -> int:
    return int(MlflowClient(home.mlflow_uri).get_registered_model("brightness").aliases["champion"])


NAME = "alarmed"


@flow(name="stands-in")
def stands_in(name: str) -> None:
    """Have the parameter by which a retraining is found."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events that Prefect would have received."""
    events = list[str]()
    monkeypatch.setattr(alarm_event, "emit_event", lambda event, **_: events.append(event))
    return events


@pytest.fixture
def run(prefect_server: str) -> Iterator[str]:
    """A flow run of a deployment `retrain` that waits for its worker."""
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(stands_in), name="retrain")
        later = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(days=1))
        run = client.create_flow_run_from_deployment(deployment, parameters={"name": NAME}, state=later)
        yield str(run.id)
        client.delete_deployment(deployment)


@pytest.mark.slow
def test_nothing_is_started_beside_a_retraining_that_waits(run: str, told: list[str], tmp_path: Path) -> None:
    emit_alarm(Home(tmp_path), NAME, "requests", harmful())
    assert told == []
    emit_alarm(Home(tmp_path), "another", "requests", harmful())
    assert told == [alarm_event.EVENT]
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Completed(), force=True)
    emit_alarm(Home(tmp_path), NAME, "requests", harmful())  # it has ended without an answer: it was killed
    assert told == [alarm_event.EVENT] * 2


@pytest.mark.slow
def test_retraining_that_a_person_cancels_is_not_started_again_for_its_alarm(
    run: str, told: list[str], tmp_path: Path
) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(run, parameters={"name": NAME, "alarm": alarm_id(harmful())})
        client.set_flow_run_state(run, Cancelled(), force=True)
        emit_alarm(Home(tmp_path), NAME, "requests", harmful())
        assert told == []
        client.update_flow_run(run, parameters={"name": NAME, "alarm": "of an earlier version"})
        emit_alarm(Home(tmp_path), NAME, "requests", harmful())
    assert told == [alarm_event.EVENT]


@pytest.mark.slow
def test_run_that_a_schedule_has_for_next_week_is_no_retraining_that_waits(
    prefect_server: str, told: list[str], tmp_path: Path
) -> None:
    with get_client(sync_client=True) as client:
        weekly = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=7)))
        flow_id = client.create_flow(stands_in)
        deployment = client.create_deployment(flow_id, "retrain", parameters={"name": NAME}, schedules=[weekly])
        tomorrow, run = (datetime.now(UTC) + timedelta(days=1)).isoformat(), "/deployments/{id}/schedule"
        client.request("POST", run, path_params={"id": deployment}, json={"start_time": tomorrow})
        assert client.read_flow_runs()
        emit_alarm(Home(tmp_path), NAME, "requests", harmful())
        client.delete_deployment(deployment)
    assert told == [alarm_event.EVENT]


def test_answered_alarm_starts_nothing(told: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "retrains" / NAME / "0123456789ab-1"
    folder.mkdir(parents=True)
    known = {"id": "1", "name": NAME, "champion": "0", "alarm": alarm_id(harmful()), "trained": 1, "held_back": 1}
    known |= {"started_at": "2026-11-22T12:00:00+00:00", "limits": {}, "config": {}, "outcome": "kept", "seconds": 1}
    result = alarm_event.RetrainRecords(Home(tmp_path), NAME)
    from wings.lifecycle.library.promotion.retrain_facts import RetrainResult

    (folder / "task.json").write_text("{}")
    (folder / "retrain.json").write_text(RetrainResult.model_validate(known | {"reason": "no gain"}).model_dump_json())
    assert len(result.all()) == 1
    emit_alarm(Home(tmp_path), NAME, "requests", harmful())
    assert told == []
