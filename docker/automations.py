"""Tells the Prefect server to close runs that died without a word: `python docker/automations.py`.

When a worker and its run are killed together (power cut, out of memory, `docker kill`), the run stays "Running" for
ever, and with a limit of one run at a time every later night waits behind it. A living run sends a heartbeat; this
automation marks a run as crashed when its heartbeats stop. Run it as often as you like: it creates or updates one
automation.
"""

from datetime import timedelta
from uuid import UUID

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture

NAME = "close-dead-runs"
# Six heartbeats of the 30 seconds that prefect.yaml sets. Fewer would catch a run whose process is only very busy.
SILENCE = timedelta(seconds=180)
HEARTBEAT = "prefect.flow-run.heartbeat"
ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}


def close_dead_runs(silence: timedelta = SILENCE) -> Automation:
    """Return the automation: after a heartbeat, either another one or an end must follow in time.

    Only runs of a deployment are watched. One that a person started with `gauntlet run` has Prefect's slower heartbeat,
    and its terminal tells how it ended.
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
            expect={HEARTBEAT, *ENDS},
            threshold=1,
            within=silence,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"No heartbeat for {silence.total_seconds():.0f} s: the process is gone",
            )
        ],
    )


def existing() -> list[UUID]:
    """Return the automations that have our name."""
    with get_client(sync_client=True) as client:
        response = client.request("POST", "/automations/filter", json={"automations": {"name": {"any_": [NAME]}}})
        response.raise_for_status()
        return [UUID(found["id"]) for found in response.json()]


def main() -> None:
    """Create the automation, or bring the one that is there up to date."""
    wanted, found = close_dead_runs(), existing()
    if found:
        wanted.id = found[0]
        wanted.update()
    else:
        wanted.create()
    print(f"automation {NAME}: {'updated' if found else 'created'}")


if __name__ == "__main__":
    main()
