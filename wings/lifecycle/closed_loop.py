"""The deployments that close the loop around a served champion: their parameters, and the schedule of the watch.

`gauntlet up` runs this module after it has created the deployments: `python -m wings.lifecycle.closed_loop [CHAMPION]`.
"""

import sys
from datetime import timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterState
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort

from flows.record.home import Home
from gauntlet.core.frozen import Frozen
from wings.lifecycle.served_champion import ServedChampion, logged_requests

MONITOR, WATCH, RETRAIN = "monitor/monitor", "monitor/watch", "retrain/retrain"
SLUG = "gauntlet-up"
"""Of the schedule that is ours: others, from prefect.yaml or made by a person, stay."""
ENDED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED]


class WatchState(Frozen):
    """The schedule of the watch, and what its last look came to."""

    name: str
    every_s: float
    paused: bool = False
    looked_at: str | None = None
    """When the last look ended; ISO 8601, UTC."""
    outcome: str = ""
    """The state of its flow run."""
    message: str = ""
    """The verdict with its reason, or why there is none."""


def close_loop(home: Home, served: ServedChampion | None) -> None:
    """Fill in the deployments for a served champion and schedule its watch; without one, remove that schedule."""
    with get_client(sync_client=True) as client:
        watch = client.read_deployment_by_name(WATCH)
        for schedule in watch.schedules:
            if schedule.slug == SLUG:
                client.delete_deployment_schedule(watch.id, schedule.id)
        if served is None:
            return
        logged = {"request_log": str(logged_requests(home, served.name).resolve())}
        limits = {"limits": served.limits} if served.limits else {}  # otherwise those of the deployment stay
        look = {"source": served.name, **logged, **limits}
        _fill_in(client, client.read_deployment_by_name(MONITOR), look)
        retrain = client.read_deployment_by_name(RETRAIN)
        replay = {**retrain.parameters.get("replay", {}), **served.replay}
        _fill_in(client, retrain, {"name": served.name, **logged, "replay": replay})
        _fill_in(client, watch, look)
        every = IntervalSchedule(interval=timedelta(seconds=served.watch_every_s))
        scheduled = {**look, "allow_empty": True}
        client.create_deployment_schedules(
            watch.id, [DeploymentScheduleCreate(schedule=every, parameters=scheduled, slug=SLUG)]
        )


def _fill_in(client: SyncPrefectClient, deployment: DeploymentResponse, parameters: dict[str, Any]) -> None:
    client.update_deployment(deployment.id, DeploymentUpdate(parameters={**deployment.parameters, **parameters}))


def read_watch() -> WatchState | None:
    """Return the schedule of the watch and its last look; None where `gauntlet up` serves nothing."""
    with get_client(sync_client=True) as client:
        watch = client.read_deployment_by_name(WATCH)
        schedule = next((schedule for schedule in watch.schedules if schedule.slug == SLUG), None)
        if schedule is None or not isinstance(schedule.schedule, IntervalSchedule):
            return None
        ended = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[watch.id]),
            state=FlowRunFilterState(type=StateTypes(any_=ENDED)),
        )
        runs = client.read_flow_runs(flow_run_filter=ended, sort=FlowRunSort.END_TIME_DESC, limit=1)
    known = {"name": watch.parameters["source"], "every_s": schedule.schedule.interval.total_seconds()}
    known["paused"] = watch.paused or not schedule.active
    for run in runs:
        assert run.state is not None
        looked_at = run.end_time and run.end_time.isoformat(timespec="seconds")
        known |= {"looked_at": looked_at, "outcome": run.state.name, "message": run.state.message or ""}
    return WatchState.model_validate(known)


def main() -> None:
    """Close the loop around the champion in the arguments, if there is one."""
    close_loop(Home.find(), ServedChampion.model_validate_json(sys.argv[1]) if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
