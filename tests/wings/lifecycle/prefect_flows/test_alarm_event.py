"""A harmful alarm is told to Prefect until a retraining answers it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Completed, Scheduled

from flows.record.home import Home
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, MonitorResult, RiskResult
from wings.lifecycle.prefect_flows import alarm_event
from wings.lifecycle.prefect_flows.alarm_event import alarm_id, emit_alarm

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


def harmful() -> MonitorResult:
    risk = {
        "labeled": 9,
        "wrong": 8,
        "reference": 0,
        "bound": 0.1,
        "harm_bound": 0.1,
        "above": 0.2,
        "below": 1,
        "evidence": 2,
    }
    return MonitorResult(
        name=NAME,
        version="0123456789ab",
        time="2026-11-22T12:00:00+00:00",
        verdict="harmful",
        reason="",
        samples=9,
        reference_samples=9,
        first="2026-11-22T10:00:00+00:00",
        limits=MonitorLimits(),
        features=(),
        risk=RiskResult.model_validate(risk | {"threshold": 1, "alarm_at": 7}),
    )


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
