"""Create the Prefect automations of this project: `python docker/automations.py`.

One marks dead runs as crashed. When a worker and its run are killed together (power cut, out of memory, `docker kill`),
the run stays "Running" forever, and with a limit of one run at a time, every later run waits for it. A live run sends
heartbeats; the automation marks it as crashed when they stop. Another one does so where a worker dies before its run
begins.

The third sends a notification when a run fails or crashes, through the notification block that `GAUNTLET_NOTIFY` names
as TYPE/NAME, such as slack-webhook/operators; without that variable, there is no such automation. The script can be
repeated.
"""

import os
import sys
from datetime import timedelta
from uuid import UUID

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

CLOSE, LOST, NOTIFY = "close-dead-runs", "close-lost-runs", "notify-of-failures"
# Six heartbeats at the 30 seconds that prefect.yaml sets. A shorter time would also match a busy process.
SILENCE = timedelta(seconds=180)
# For the start of a process, and to fetch the image of a container.
PATIENCE = timedelta(minutes=30)
# A monitor that sees an alarm fails at each look, every few minutes, until the alarm is answered.
QUIET = timedelta(hours=1)
HEARTBEAT = "prefect.flow-run.heartbeat"
TAKEN = {"prefect.flow-run.Pending", "prefect.flow-run.Submitting"}
FINAL_STATES = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}


def close_dead_runs(silence: timedelta = SILENCE) -> Automation:
    """Return the automation: after a heartbeat, another one or a final state must follow in time.

    It applies only to runs of a deployment. A run started with `gauntlet run` has Prefect's slower heartbeat, and its
    terminal shows how it ended.
    """
    message = f"No heartbeat for {silence.total_seconds():.0f} s: the process no longer exists"
    about = "A run whose heartbeats stopped is marked as crashed, so that the next one can start."
    return _crashing(CLOSE, about, {HEARTBEAT}, {HEARTBEAT, *FINAL_STATES}, silence, message)


def close_lost_runs(patience: timedelta = PATIENCE) -> Automation:
    """Return the automation: what a worker has taken must begin in time; it does not where the worker has ended."""
    message = f"It did not begin within {patience.total_seconds():.0f} s: its worker no longer exists"
    about = "A run that its worker took and did not begin is marked as crashed, so that another one can start."
    return _crashing(LOST, about, TAKEN, {"prefect.flow-run.*"}, patience, message)


def _crashing(
    name: str, description: str, after: set[str], expect: set[str], within: timedelta, message: str
) -> Automation:
    return Automation(
        name=name,
        description=description,
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related={"prefect.resource.role": ["deployment"]},
            for_each={"prefect.resource.id"},
            after=after,
            expect=expect,
            threshold=1,
            within=within,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message)],
    )


def notify_of_failures(block: UUID, quiet: timedelta = QUIET) -> Automation:
    """Return the automation that tells people of a deployment's failures by a notification block, once in `quiet`."""
    return Automation(
        name=NOTIFY,
        description="Failed and crashed runs of gauntlet's deployments are told to people.",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related={"prefect.resource.id": ["prefect.tag.gauntlet"]},
            for_each={"related:deployment:prefect.resource.id"},
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            threshold=1,
            within=quiet,
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="gauntlet: {{ deployment.name }} {{ flow_run.state.name | lower }}",
                body="{{ flow_run.name }}: {{ flow_run.state.message }}\n{{ flow_run | ui_url }}",
            )
        ],
    )


def notification_block(name: str) -> UUID:
    """Return the id of a notification block, TYPE/NAME; end with exit code 2 where there is none."""
    kind, _, own = name.partition("/")
    with get_client(sync_client=True) as client:
        try:
            return client.read_block_document_by_name(own, kind).id
        except ObjectNotFound:
            print(
                f"GAUNTLET_NOTIFY: the Prefect server has no block {name!r}; expected TYPE/NAME, such as "
                "slack-webhook/operators. Fix: create it on the page Blocks, or unset the variable",
                file=sys.stderr,
            )
            sys.exit(2)


def put(automation: Automation) -> None:
    """Create an automation, or update the one with its name, which forgets the events that it waits for."""
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(automation.name)
    done = "updated" if known else "created"
    if not known:
        automation.create()
    elif known[0].model_dump(exclude={"id"}) == automation.model_dump(exclude={"id"}):
        done = "unchanged"
    else:
        automation.id = known[0].id
        automation.update()
    print(f"automation {automation.name}: {done}")


def main() -> None:
    """Create or update the automations; remove the one that is no longer asked for."""
    put(close_dead_runs())
    put(close_lost_runs())
    if block := os.environ.get("GAUNTLET_NOTIFY"):
        put(notify_of_failures(notification_block(block)))
        return
    with get_client(sync_client=True) as client:
        for automation in client.read_automations_by_name(NOTIFY):
            client.delete_automation(automation.id)
            print(f"automation {NOTIFY}: removed")


if __name__ == "__main__":
    main()
