"""The deployments around a served champion: filled in and scheduled once, however often `gauntlet up` is called."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.schedules import CronSchedule

from flows.record.home import Home
from flows.servers.closed_loop import SLUG, WATCH, WatchState, close_loop, read_watch
from flows.servers.local_platform import ServedChampion, deploy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def client(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)  # of the commands that deploy
    with get_client(sync_client=True) as client:
        yield client


def test_watch_is_scheduled_once_and_other_settings_stay(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    home, served = Home(tmp_path), ServedChampion(name="digits", port=1, watch_every_s=86_400)
    (home.root / "platform").mkdir()
    deploy(home, served)
    watch = client.read_deployment_by_name(WATCH)
    assert watch.work_queue_name == "watch"
    client.create_deployment_schedules(watch.id, [(CronSchedule(cron="0 0 1 1 *"), True)], slug="mine")
    log = str(home.request_log("digits").resolve())
    close_loop(home, served.replace(watch_every_s=43_200, replay={"rounds": 6}))

    watch = client.read_deployment_by_name(WATCH)
    schedules = {one.slug: one for one in watch.schedules}
    assert sorted(map(str, schedules)) == [SLUG, "mine"]
    assert schedules[SLUG].schedule.interval == timedelta(hours=12)
    looked = {"source": "digits", "request_log": log}
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
