"""Create the Prefect automation that marks dead runs as crashed: `python docker/automations.py`.

When a worker and its run are killed together (power cut, out of memory, `docker kill`), the run stays "Running"
forever, and with a limit of one run at a time, every later run waits for it. A live run sends heartbeats; this
automation marks it as crashed when they stop. The script can be repeated: it creates or updates one automation.
"""

from datetime import timedelta
from uuid import UUID

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture

NAME = "close-dead-runs"
# Six heartbeats at the 30 seconds that prefect.yaml sets. A shorter time would also match a busy process.
SILENCE = timedelta(seconds=180)
HEARTBEAT = "prefect.flow-run.heartbeat"
FINAL_STATES = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}


def close_dead_runs(silence: timedelta = SILENCE) -> Automation:
    """Return the automation: after a heartbeat, another one or a final state must follow in time.

    It applies only to runs of a deployment. A run started with `gauntlet run` has Prefect's slower heartbeat, and its
    terminal shows how it ended.
    """
    return Automation(
        name=NAME,
        description="A run whose heartbeats stopped is marked as crashed, so that the next one can start.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related={"prefect.resource.role": ["deployment"]},
            for_each={"prefect.resource.id"},
            after={HEARTBEAT},
            expect={HEARTBEAT, *FINAL_STATES},
            threshold=1,
            within=silence,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"No heartbeat for {silence.total_seconds():.0f} s: the process no longer exists",
            )
        ],
    )


def existing() -> list[UUID]:
    """Return the ids of the automations with the name `NAME`."""
    with get_client(sync_client=True) as client:
        response = client.request("POST", "/automations/filter", json={"automations": {"name": {"any_": [NAME]}}})
        response.raise_for_status()
        return [UUID(automation["id"]) for automation in response.json()]


def main() -> None:
    """Create the automation, or update the existing one."""
    automation, ids = close_dead_runs(), existing()
    if ids:
        automation.id = ids[0]
        automation.update()
    else:
        automation.create()
    print(f"automation {NAME}: {'updated' if ids else 'created'}")


if __name__ == "__main__":
    main()
