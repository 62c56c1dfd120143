"""The parts of the platform on this machine: Prefect, MLflow, the deployments, the workers, and what wings add.

`gauntlet up` starts this module in a process of its own: `python -m wings.platform.local_platform SETTINGS`.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from itertools import starmap
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psutil
from pydantic import Field

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.local_servers import is_alive, launch, recorded_process, running, start_mlflow, start_prefect, stop
from flows.servers.password import authorization, mlflow_variables, prefect_variables
from flows.servers.ports import Port
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.core.kinds import kinds
from wings.platform.supervisor import POLL_S, SUPERVISED, Part, Supervisor, guard, supervisor_lock

POOL = "gauntlet"
WORKERS = {"worker": "default"}
"""Name of a worker -> the work queue that it serves."""
PROJECT = Path(__file__).parents[2]
"""The checkout: Prefect's deployments and the automation are files of it."""
AUTOMATIONS = str(PROJECT / "docker" / "automations.py")


class PlatformWing(Protocol):
    """What a package adds to the platform: the object of an entry point `platform.NAME`.

    Importing it loads neither Prefect nor MLflow. Deployments that a wing adds are in a `prefect.yaml` of its folder.
    """

    WORKERS: Mapping[str, str]
    """As `WORKERS` here: more workers, each with a queue for itself."""

    def settings(self, options: argparse.Namespace) -> JsonObject | None:
        """Return what `gauntlet up` was asked for; None for nothing. `ConfigError` when it is not possible."""

    def require_same(self, settings: JsonObject, serves: str) -> None:
        """Raise `ConfigError` when a platform that runs already, and serves a model or none, does something else."""

    def parts(self, home: Home, settings: JsonObject) -> Sequence[tuple[str, Callable[[], psutil.Process], str, str]]:
        """Return what runs besides the servers and workers: the name of a part, and the other arguments of `Part`."""

    def after_deployment(self, settings: JsonObject | None) -> list[str]:
        """Return the arguments of a Python process that fills in the deployments for these settings."""

    def status(self, serves: str) -> tuple[JsonObject, str]:
        """Return what `gauntlet status` adds, as JSON and as a line; `serves` as above, or empty without Prefect."""


class PlatformSettings(Frozen):
    """What `gauntlet up` was asked for. Of ports, other ones are taken where these cannot be had."""

    prefect_port: int
    mlflow_port: int
    wings: dict[str, JsonObject] = Field({}, description="what was asked of wings, by name")


def platform_wings() -> Mapping[str, PlatformWing]:
    """Return what packages add to the platform, by name."""
    return kinds("platform")


def local_platform(home: Home, settings: PlatformSettings) -> Supervisor:
    """Return the supervisor of the servers, the deployments and the workers on the loopback."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    known = running(home)
    prefect = Port(urlsplit(known).port or 0) if known else Port.take(settings.prefect_port)
    mlflow = Port.take(settings.mlflow_port)
    os.environ |= {
        **prefect_variables(home, f"{prefect.address}/api"),
        **mlflow_variables(home, mlflow.address),
        "GAUNTLET_HOME": str(home.root),
        SUPERVISED: str(home.root.resolve()),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH")))),
    }
    servers = [
        Part("prefect", partial(share_prefect, home, prefect), prefect.address),
        Part("mlflow", partial(start_mlflow, home, mlflow, asks=True), mlflow.address),
    ]
    clients = [Part("deployments", lambda: deploy(home, settings))]
    workers = dict(WORKERS)
    for name, wing in platform_wings().items():
        workers |= wing.WORKERS
        clients += starmap(Part, wing.parts(home, settings.wings[name])) if name in settings.wings else []
    for name, queue in workers.items():
        clients.append(Part(name, partial(start_worker, home, name, queue), end=stop_worker))
    return Supervisor(home, servers, clients)


def share_prefect(home: Home, port: Port) -> psutil.Process:
    """Start this home's Prefect server, or take over the one that a run has started; wait until it responds."""
    with locked(home.prefect / "start.lock"):
        known = recorded_process(home) if running(home) else None
        return known or start_prefect(home, port, lambda: None)


def deploy(home: Home, settings: PlatformSettings) -> None:
    """Create the work pool, the deployments of the project and its wings, and the automation.

    Raises:
        StageError: when one of them fails.
    """
    prefect = ["-m", "prefect"]
    _run(home, [*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"])
    for file in (PROJECT / "prefect.yaml", *sorted(PROJECT.glob("wings/*/prefect.yaml"))):
        _run(home, [*prefect, "--no-prompt", "deploy", "--all", "--prefect-file", str(file.relative_to(PROJECT))])
    for name, wing in platform_wings().items():
        _run(home, wing.after_deployment(settings.wings.get(name)))
    _run(home, [AUTOMATIONS])  # last: a name misspelled in GAUNTLET_NOTIFY holds nothing else up


def deploy_again(home: Home, settings: PlatformSettings) -> None:
    """Fill in the deployments of a platform that runs, and its notifications, for what was asked now."""
    if os.environ.get("GAUNTLET_NOTIFY"):
        _run(home, [AUTOMATIONS])
    for name, wing_settings in settings.wings.items():
        _run(home, platform_wings()[name].after_deployment(wing_settings))


def _run(home: Home, arguments: list[str]) -> None:
    log = home.root / "platform" / "deployments.log"
    with log.open("ab") as output:
        done = subprocess.run([sys.executable, *arguments], cwd=PROJECT, stdout=output, stderr=output, check=False)
    if done.returncode:
        reason = next(filter(str.strip, reversed(log.read_text(errors="replace").splitlines())), "no message")
        raise StageError(f"{' '.join(arguments)} ended with exit code {done.returncode}: {reason}; see {log}")


def start_worker(home: Home, name: str, queue: str) -> psutil.Popen:
    """Start a worker for a queue, one run at a time, and wait until Prefect has its first heartbeat."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--name", name, "--pool", POOL, "--type", "process"]
    command += ["--work-queue", queue, "--limit", "1"]
    since = datetime.now(UTC)
    process = launch(command, dict(os.environ), home.root / "platform" / f"{name}.log")
    while is_alive(process) and name not in workers_online(since):
        time.sleep(POLL_S)
    return process


def stop_worker(worker: psutil.Process, patience_s: float) -> None:
    """Stop a worker once its run has closed its record: Prefect's worker, when it is stopped, kills its run at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        runs = worker.children()
        for run in runs:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                run.terminate()
        psutil.wait_procs(runs, timeout=patience_s)
    stop(worker, patience_s)


def workers_online(since: datetime) -> set[str]:
    """Return the names of the pool's workers that Prefect counts as online and that it has heard from since then."""
    online = {"status": {"any_": ["ONLINE"]}, "last_heartbeat_time": {"after_": since.isoformat()}}
    address = f"{os.environ['PREFECT_API_URL']}/work_pools/{POOL}/workers/filter"
    headers = {"Content-Type": "application/json", **authorization()}
    request = urllib.request.Request(address, json.dumps({"workers": online}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # the server that we started
            return {str(worker["name"]) for worker in json.load(response)}
    except (OSError, HTTPException, ValueError):  # away, killed while it responds, or there is no pool yet
        return set()


def main() -> None:
    """Run the platform of this home until SIGTERM."""
    settings, home = PlatformSettings.model_validate_json(sys.argv[1]), Home.find()
    # The second lock keeps runs of the command line from stopping the Prefect server that they share.
    second = partial(sys.exit, "a supervisor of this home runs already")  # it would start everything again after `down`
    with locked(supervisor_lock(home), on_wait=second), locked(home.prefect / "users.lock", shared=True):
        guard(home)
        supervisor = local_platform(home, settings)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: supervisor.stopping.set())
        supervisor.run()
    (home.prefect / "server.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
