"""Failed runs are told to people, through a notification block of a real Prefect server."""

import http.server
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from harness import until
from prefect import flow
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.states import Completed, Crashed, Failed, Pending, Running, State

SCRIPT = Path(__file__).parents[3] / "docker" / "automations.py"
BLOCK = "custom-webhook/operators"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@flow(name="nightly-stand-in")
def stands_in() -> None:
    """Give deployments a flow."""


@pytest.fixture
def received() -> Iterator[tuple[str, "queue.Queue[dict[str, str]]"]]:
    """The address of a web hook, and the messages that it has received."""
    messages: queue.Queue[dict[str, str]] = queue.Queue()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", messages
    server.shutdown()
    server.server_close()


def set_up(prefect_server: str, block: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PREFECT_API_URL": prefect_server, "GAUNTLET_NOTIFY": block}
    return subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)


def test_failures_of_a_deployment_are_told_once_an_hour_and_successes_never(
    client: SyncPrefectClient, prefect_server: str, received: tuple[str, "queue.Queue[dict[str, str]]"]
) -> None:
    address, messages = received
    hook = CustomWebhookNotificationBlock(
        name="operators", url=address, json_data={"subject": "{{subject}}", "body": "{{body}}"}, secrets={}
    )
    hook.save("operators", overwrite=True)
    done = set_up(prefect_server, BLOCK)
    assert done.returncode == 0, done.stderr
    assert "automation notify-of-failures: created" in done.stdout

    def end(deployment: str, tag: str, state: State[None]) -> None:
        made = client.create_deployment(client.create_flow(stands_in), name=deployment, tags=[tag])
        run = client.create_flow_run_from_deployment(made)
        client.set_flow_run_state(run.id, state, force=True)

    end("fine", "gauntlet", Completed())
    end("another's", "other", Failed(message="not ours"))
    end("nightly", "gauntlet", Failed(message="accuracy.drop 0.03 > 0.01"))
    end("nightly", "gauntlet", Failed(message="again"))
    end("watch", "gauntlet", Crashed(message="the process no longer exists"))
    told = sorted((messages.get(timeout=120) for _ in range(2)), key=lambda message: message["subject"])
    assert [message["subject"] for message in told] == ["gauntlet: nightly failed", "gauntlet: watch crashed"]
    assert "accuracy.drop 0.03 > 0.01" in told[0]["body"]
    assert "the process no longer exists" in told[1]["body"]
    assert "/runs/flow-run/" in told[0]["body"]
    assert messages.empty()

    assert "automation notify-of-failures: removed" in set_up(prefect_server, "").stdout


def test_runs_whose_heartbeats_stopped_are_still_known_once_the_automations_are_set_up_again(
    client: SyncPrefectClient, prefect_server: str
) -> None:
    """Each `up` does that. Prefect counts events by the trigger's id, and gives one that is updated another id."""

    def triggers() -> list[str]:
        return [known["trigger"]["id"] for known in client.request("POST", "/automations/filter", json={}).json()]

    set_up(prefect_server, "")
    before = triggers()
    assert "automation close-dead-runs: unchanged" in set_up(prefect_server, "").stdout
    assert triggers() == before != []


def test_run_that_its_worker_never_began_is_closed_and_one_that_began_is_not(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retraining would count as under way, and its alarm would never be answered."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import automations

    automations.put(automations.close_lost_runs(timedelta(seconds=10)))
    made = client.create_deployment(client.create_flow(stands_in), name="stands in")
    lost, begun = (client.create_flow_run_from_deployment(made).id for _ in range(2))
    for run, states in ((begun, [Pending(), Running()]), (lost, [Pending(), Pending(name="Submitting")])):
        for state in states:
            client.set_flow_run_state(run, state, force=True)
    until(lambda: client.read_flow_run(lost).state_type == StateType.CRASHED, 120)
    assert client.read_flow_run(begun).state_type == StateType.RUNNING
    for known in client.read_automations_by_name(automations.LOST):  # other tests' runs wait for longer
        client.delete_automation(known.id)
    client.delete_deployment(made)
