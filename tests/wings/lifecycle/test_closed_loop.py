"""The deployments around a served champion: filled in and scheduled once, however often `gauntlet up` is called."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from harness import until
from monitored_bundles import harmful
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.schedules import CronSchedule

from flows.record.home import Home
from flows.servers.local_servers import stop
from wings.lifecycle.closed_loop import SLUG, WATCH, WatchState, close_loop, read_watch
from wings.lifecycle.prefect_flows.alarm_event import emit_alarm
from wings.lifecycle.served_champion import ServedChampion, logged_requests, status
from wings.platform.local_platform import PlatformSettings, deploy, start_worker, workers_online

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    (tmp_path / "platform").mkdir()
    return Home(tmp_path)


def deploy_all(home: Home, served: ServedChampion | None = None) -> None:
    wings = {"lifecycle": served.model_dump()} if served else {}
    deploy(home, PlatformSettings(prefect_port=1, mlflow_port=1, wings=wings))


def test_watch_is_scheduled_once_and_other_settings_stay(client: SyncPrefectClient, home: Home) -> None:
    served = ServedChampion(name="digits", port=1, watch_every_s=86_400)
    deploy_all(home, served)
    watch = client.read_deployment_by_name(WATCH)
    assert watch.work_queue_name == "watch"
    client.create_deployment_schedules(watch.id, [(CronSchedule(cron="0 0 1 1 *"), True)], slug="mine")
    log = str(logged_requests(home, "digits").resolve())
    limits = {"season_h": 24}
    close_loop(home, served.replace(watch_every_s=43_200, replay={"rounds": 6}, limits=limits))

    watch = client.read_deployment_by_name(WATCH)
    schedules = {one.slug: one for one in watch.schedules}
    assert sorted(map(str, schedules)) == [SLUG, "mine"]
    assert schedules[SLUG].schedule.interval == timedelta(hours=12)
    looked = {"source": "digits", "request_log": log, "limits": limits}
    assert schedules[SLUG].parameters == {**looked, "allow_empty": True}
    assert watch.parameters == {**looked, "roll_back": True}
    assert client.read_deployment_by_name("monitor/monitor").parameters == looked
    retrain = client.read_deployment_by_name("retrain/retrain").parameters
    assert retrain == {"name": "digits", "request_log": log, "replay": {"rounds": 6}}
    assert read_watch() == WatchState(name="digits", every_s=43_200)

    close_loop(home, None)
    assert [one.slug for one in client.read_deployment_by_name(WATCH).schedules] == ["mine"]
    assert read_watch() is None
    client.delete_deployment_schedule(watch.id, schedules["mine"].id)


def test_paused_schedule_is_named_and_stays_paused(client: SyncPrefectClient, home: Home) -> None:
    deploy_all(home, ServedChampion(name="digits", port=1))
    watch, nightly = (client.read_deployment_by_name(name) for name in (WATCH, "gauntlet/nightly"))
    for deployment in (watch, nightly):
        client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=False)
    assert "Watch of digits: paused; no look yet" in status("digits")[1]
    deploy_all(home)
    [schedule] = client.read_deployment_by_name("gauntlet/nightly").schedules
    client.update_deployment_schedule(nightly.id, schedule.id, active=True)
    assert not schedule.active


def test_harmful_alarm_starts_one_retraining_and_no_other_does(client: SyncPrefectClient, home: Home) -> None:
    deploy_all(home)
    deployment = client.read_deployment_by_name("retrain/retrain")
    mine = FlowRunFilter.model_validate({"deployment_id": {"any_": [str(deployment.id)]}})
    emit_alarm(home, "digits", "requests", harmful(verdict="cannot tell", predictions="cannot tell"))
    emit_alarm(home, "digits.zip/", "requests", harmful())
    emit_alarm(home, "digits", "requests", harmful(risk=None))  # of latency or failures
    emit_alarm(home, "digits", "requests", harmful())
    run = until(lambda: next(iter(client.read_flow_runs(flow_run_filter=mine)), None))
    expected = {"name": "digits", "request_log": str(Path("requests").resolve())}
    assert run.parameters == expected | {"alarm": "0123456789ab-7-20261122100000"}
    began_at = datetime.now(UTC)
    worker = start_worker(home, "worker", "default")  # returns when Prefect has heard from it
    try:
        assert "worker" in workers_online(began_at)
        assert "worker" not in workers_online(datetime.now(UTC) + timedelta(hours=1))
        until(lambda: (state := client.read_flow_run(run.id).state) is not None and state.is_final())
    finally:
        stop(worker)
    state = client.read_flow_run(run.id).state
    assert state is not None and "models:/digits@champion: no such version" in str(state.message)
    assert len(client.read_flow_runs(flow_run_filter=mine)) == 1
