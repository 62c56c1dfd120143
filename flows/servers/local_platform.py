"""The parts of the platform on this machine: Prefect, MLflow, the deployments, two workers, and a served champion.

`gauntlet up` starts this module in a process of its own: `python -m flows.servers.local_platform SETTINGS`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from pydantic import Field

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.local_servers import (
    HOST,
    is_alive,
    launch,
    recorded_process,
    running,
    start_mlflow,
    start_prefect,
    wait_until_up,
)
from flows.servers.supervisor import POLL_S, Part, Supervisor
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, JsonObject

POOL = "gauntlet"
WORKERS = {"worker": "default", "watcher": "watch"}
"""Name of a worker -> the work queue that it serves: a look at a champion does not wait for a training."""
PROJECT = Path(__file__).parents[2]
"""The checkout: Prefect's deployments and the automation are files of it."""


class ServedChampion(Frozen):
    """A registered model whose champion is served, watched and retrained."""

    name: str
    port: int
    watch_every_s: int = Field(300, ge=1, description="between two looks")
    replay: JsonObject = Field({}, description="limits of a retraining that were given")


class PlatformSettings(Frozen):
    """What `gauntlet up` was asked for."""

    prefect_port: int
    mlflow_port: int
    served: ServedChampion | None = None


def local_platform(home: Home, settings: PlatformSettings) -> Supervisor:
    """Return the supervisor of the servers, the deployments, the workers and the champion's server on the loopback."""
    prefect, mlflow = (f"http://{HOST}:{port}" for port in (settings.prefect_port, settings.mlflow_port))
    home.prefect.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_URL": f"{prefect}/api",
        "MLFLOW_TRACKING_URI": mlflow,
        "GAUNTLET_HOME": str(home.root),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH")))),
    }
    servers = [
        Part("prefect", lambda: share_prefect(home, settings.prefect_port), prefect),
        Part("mlflow", lambda: start_mlflow(home, settings.mlflow_port), mlflow),
    ]
    clients = [Part("deployments", lambda: deploy(home, settings.served))]
    clients += [Part(name, lambda name=name: start_worker(home, name)) for name in WORKERS]  # type: ignore[misc]
    if served := settings.served:
        address = f"http://{HOST}:{served.port}"
        clients.append(Part("serving", lambda: start_serving(home, served), address, served.name))
    return Supervisor(home, servers, clients)


def share_prefect(home: Home, port: int) -> psutil.Process:
    """Start this home's Prefect server, or take over the one that a run has started; wait until it responds."""
    with locked(home.prefect / "start.lock"):
        known = recorded_process(home) if running(home) else None
        return known or start_prefect(home, port, lambda: None)


def deploy(home: Home, served: ServedChampion | None) -> None:
    """Create the work pool, the deployments of `prefect.yaml`, the automation and the schedule of the watch.

    Raises:
        StageError: when one of them fails.
    """
    prefect = [sys.executable, "-m", "prefect"]
    pool = ["work-pool", "create", POOL, "--type", "process", "--overwrite"]
    loop = [sys.executable, "-m", "flows.servers.closed_loop", *([served.model_dump_json()] if served else [])]
    log = home.root / "platform" / "deployments.log"
    for command in (
        [*prefect, *pool],
        [*prefect, "--no-prompt", "deploy", "--all"],
        [sys.executable, str(PROJECT / "docker" / "automations.py")],
        loop,
    ):
        with log.open("ab") as output:
            done = subprocess.run(command, cwd=PROJECT, stdout=output, stderr=output, check=False)
        if done.returncode:
            raise StageError(f"{' '.join(command[1:])} ended with exit code {done.returncode}; see {log}")


def start_worker(home: Home, name: str) -> psutil.Popen:
    """Start a worker for its queue, one run at a time, and wait until it has asked the server for work."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--name", name, "--pool", POOL, "--type", "process"]
    command += ["--work-queue", WORKERS[name], "--limit", "1"]
    log = home.root / "platform" / f"{name}.log"
    before = log.stat().st_size if log.exists() else 0
    process = launch(command, {**os.environ, "PYTHONUNBUFFERED": "1"}, log)
    while is_alive(process) and b"started!" not in log.read_bytes()[before:]:
        time.sleep(POLL_S)
    return process


def start_serving(home: Home, served: ServedChampion) -> psutil.Popen:
    """Serve a champion with a request log, and wait until the server answers; `StageError` when it does not.

    Where there is no champion yet, the server waits for the first one.
    """
    log, model = home.root / "platform" / "serving.log", f"models:/{served.name}@champion"
    command = [sys.executable, "-m", "flows.cli.main", "serve", model, "--wait", "--name", served.name]
    command += ["--port", str(served.port)]
    command += ["--request-log", str(home.request_log(served.name)), "--log-inputs", "all"]  # a retraining needs inputs
    process = launch(command, dict(os.environ), log)
    wait_until_up(process, f"http://{HOST}:{served.port}/v2/health/live", f"gauntlet serve {model}", log)
    return process


def main() -> None:
    """Run the platform of this home until SIGTERM."""
    settings, home = PlatformSettings.model_validate_json(sys.argv[1]), Home.find()
    if url := running(home):
        settings = settings.replace(prefect_port=urlsplit(url).port or settings.prefect_port)
    supervisor = local_platform(home, settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: supervisor.stopping.set())
    # The second lock keeps runs of the command line from stopping the Prefect server that they share.
    with locked(home.root / "platform" / "lock"), locked(home.prefect / "users.lock", shared=True):
        supervisor.run()
    (home.prefect / "server.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
