"""`gauntlet up`, `status` and `down`: Prefect, MLflow, the deployments and a worker on this machine."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.record.home import Home
from flows.record.locks import is_locked
from flows.servers.local_servers import free_port, launch, profile_api_url, stop
from flows.servers.supervisor import PROJECT, PartState, PlatformState, read_state, state_file
from gauntlet.core.errors import ConfigError, StageError

READY_TIMEOUT_S = 240.0
POLL_S = 0.2


def start_platform(options: argparse.Namespace) -> int:
    """Start what does not run yet, wait until all of it is ready, and print the addresses.

    Raises:
        ConfigError: when the environment names another Prefect server, or there is no checkout to deploy from.
        StageError: when a part does not become ready.
    """
    home, console = Home.find(), Console()
    if named := os.environ.get("PREFECT_API_URL") or profile_api_url():
        raise ConfigError(f"Prefect's settings name the server {named}; use it, or unset PREFECT_API_URL for `up`")
    if not (PROJECT / "prefect.yaml").is_file():
        raise ConfigError(f"{PROJECT / 'prefect.yaml'}: no such file; install the project from a checkout for `up`")
    if not _supervised(home):
        _stop_left_over(home)
        words = [str(free_port(options.prefect_port)), str(free_port(options.mlflow_port))]
        words += [options.serve, str(free_port(options.serve_port))] if options.serve else []
        log = home.root / "platform" / "supervisor.log"
        environment = {**os.environ, "GAUNTLET_HOME": str(home.root)}
        launch([sys.executable, "-m", "flows.servers.supervisor", *words], environment, log)
        console.print("Starting Prefect, MLflow, the deployments and a worker ...", highlight=False)
    state = _wait_until_ready(home)
    addresses = {part.name: part.address for part in state.parts}
    console.print(f"Prefect  {addresses['prefect']}/deployments", highlight=False, soft_wrap=True)
    mlflow = f"{addresses['mlflow']}/#/experiments?workflowType=machine_learning"
    console.print(f"MLflow   {mlflow}", highlight=False, soft_wrap=True)
    if address := addresses.get("serving"):
        console.print(f"Serving  {address}", highlight=False, soft_wrap=True)
    console.print("Start a run: gauntlet/on-demand on Prefect's page, Run. Stop everything: gauntlet down")
    return 0


def show_status(options: argparse.Namespace) -> int:
    """Print the parts; return 0 when all are ready, else 1."""
    home = Home.find()
    state = read_state(home)
    alive = state is not None and _supervised(home)
    if options.json:
        print(json.dumps({"running": alive, **(state.model_dump() if state else {})}, indent=1))  # noqa: T201
    elif state is None:
        Console().print("Nothing runs. Start it with: gauntlet up", highlight=False)
    else:
        Console().print(_table(state))
        if not alive:
            Console().print("The supervisor has ended: nothing is restarted. Fix: gauntlet up", highlight=False)
    return 0 if state is not None and alive and state.is_ready else 1


def stop_platform(options: argparse.Namespace) -> int:
    """Stop everything; return 0 also when nothing runs."""
    home = Home.find()
    state = read_state(home)
    supervisor = state.supervisor.process if state else None
    if supervisor is not None:
        stop(supervisor, patience_s=60)
    _stop_left_over(home)
    Console().print("Nothing runs any more." if state else "Nothing runs.", highlight=False)
    return 0


def _supervised(home: Home) -> bool:
    return is_locked(home.root / "platform" / "lock")


def _stop_left_over(home: Home) -> None:
    """Stop the parts of a supervisor that was killed, and forget them."""
    state = read_state(home)
    for part in state.parts if state else ():
        if process := part.process:
            stop(process)
    state_file(home).unlink(missing_ok=True)


def _wait_until_ready(home: Home) -> PlatformState:
    deadline = time.monotonic() + READY_TIMEOUT_S
    state = read_state(home)
    while time.monotonic() < deadline:
        state = read_state(home)
        if state is not None and state.is_ready:
            return state
        time.sleep(POLL_S)
    errors = "; ".join(_problems(state)) if state else f"see {home.root / 'platform' / 'supervisor.log'}"
    raise StageError(f"not ready after {READY_TIMEOUT_S:g} s: {errors}")


def _problems(state: PlatformState) -> Iterator[str]:
    for part in state.parts:
        if not part.ready:
            yield f"{part.name}: {part.error or 'is still starting'}"


def _table(state: PlatformState) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for title in ("part", "state", "process", "restarts", "address"):
        table.add_column(title, justify="right" if title in ("process", "restarts") else "left")
    for part in state.parts:
        process = str(part.pid) if part.process else ""
        table.add_row(part.name, escape(_word(part)), process, str(part.restarts), escape(part.address))
    return table


def _word(part: PartState) -> str:
    if not part.ready:
        return part.error or "starting"
    return "ready" if part.process else "done" if part.pid is None else "ended"
