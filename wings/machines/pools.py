"""Work pools of other machines: their deployment, and whether a worker is there to race."""

import contextlib

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
from prefect.client.schemas.objects import WorkerStatus, WorkPool
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.types.entrypoint import EntrypointType

from wings.machines.race_flow import race

PROCESS = "process"
JOB_VARIABLES = {
    "env": {
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # see prefect.yaml
        "PREFECT_LOGGING_EXTRA_LOGGERS": "gauntlet",
    }
}


def deployment_name(pool: str) -> str:
    """Return the name of the deployment whose runs are races on the machines of a pool."""
    return f"{race.name}/{pool}"


def find_or_create(client: SyncPrefectClient, pool: str) -> WorkPool:
    """Return a work pool; create one for processes where there is none."""
    with contextlib.suppress(ObjectAlreadyExists):  # another worker may do the same now
        client.create_work_pool(WorkPoolCreate(name=pool, type=PROCESS))
    return client.read_work_pool(pool)


def deploy_race(pool: str) -> None:
    """Create or update the deployment of the race on a pool.

    It names the flow by its module, so that each worker runs the code of its own environment.
    """
    deployment = RunnerDeployment.from_flow(
        race,
        name=pool,
        description="One target's race on a machine of this pool. Runs of the pipeline start it.",
        tags=["gauntlet"],
        work_pool_name=pool,
        job_variables=JOB_VARIABLES,
        entrypoint_type=EntrypointType.MODULE_PATH,
        enforce_parameter_schema=False,  # the flow validates them itself, with the schema of its own version
    )
    deployment.apply()


def why_absent(client: SyncPrefectClient, pool: str) -> str | None:
    """Return why no machine of a pool can race, in one line, or None; a quick look at what the server knows."""
    fix = f"on such a machine, start: gauntlet worker --pool {pool}"
    try:
        status = client.read_work_pool(pool)
        client.read_deployment_by_name(deployment_name(pool))
    except ObjectNotFound:
        return f"the Prefect server at {client.api_url} has no work pool {pool!r} with a race; {fix}"
    if status.is_paused:
        return f"the work pool {pool!r} is paused; resume it: prefect work-pool resume {pool}"
    if not alive_workers(client, pool):
        return f"no worker of the work pool {pool!r} is alive ({_last_seen(client, pool)}); {fix}"
    return None


def alive_workers(client: SyncPrefectClient, pool: str) -> set[str]:
    """Return the names of the pool's workers whose heartbeats the server has received in time."""
    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE.value]))
    return {worker.name for worker in client.read_workers_for_work_pool(pool, worker_filter=online)}


def _last_seen(client: SyncPrefectClient, pool: str) -> str:
    workers = client.read_workers_for_work_pool(pool)
    times = [worker.last_heartbeat_time for worker in workers if worker.last_heartbeat_time]
    return f"last heartbeat {max(times):%Y-%m-%d %H:%M:%S} UTC" if times else "it has had none"
