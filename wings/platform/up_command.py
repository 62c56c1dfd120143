"""`gauntlet up`, `status` and `down`: Prefect, MLflow, the deployments and workers, and what wings add."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.report_tables import plain_table
from flows.cli.shared import Output
from flows.record.home import Home
from flows.record.locks import is_locked
from flows.servers.local_servers import began, is_alive, launch, profile_api_url, responds, stop
from flows.servers.password import password_hint, prefect_variables
from flows.servers.ports import Port
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError, StageError, is_checkout
from gauntlet.core.frozen import JsonObject
from wings.platform.local_platform import PlatformSettings, deploy_again, platform_wings
from wings.platform.supervisor import (
    POLL_S,
    PartState,
    PlatformState,
    left_over,
    read_state,
    state_file,
    supervisor_lock,
)

READY_TIMEOUT_S, DOWN_TIMEOUT_S = 600.0, 180.0
PORTS = {"prefect": 4200, "mlflow": 5000}
LOGS = {"prefect": "prefect/server.log", "mlflow": "mlflow-server.log"}  # below the home; others are in `platform/`
NO_MODEL = "         there is no model yet: it serves the first one that comes"


def start_platform(options: argparse.Namespace) -> int:
    """Start what does not run yet, wait until all of it is ready, and print the addresses.

    Raises:
        ConfigError: when the environment names another Prefect server, there is no checkout to deploy from, or what
            runs already does something else than is asked for.
        StageError: when a part does not become ready.
    """
    home, console = Home.find(), Output()
    if named := os.environ.get("PREFECT_API_URL") or profile_api_url():
        raise ConfigError(f"Prefect's settings name the server {named}; use it, or unset PREFECT_API_URL for `up`")
    if not is_checkout():
        raise ConfigError("`up` starts the deployments of a checkout. Fix: clone the project, and call make demo there")
    settings, runs, supervisor = _settings(options), _supervised(home), None
    _require_ports(options, read_state(home) if runs else None)
    if runs:
        _require_same(read_state(home), settings)
    else:
        _stop_left_over(home)
        home.create()
        log = home.root / "platform" / "supervisor.log"
        environment = {**os.environ, "GAUNTLET_HOME": str(home.root)}
        command = [sys.executable, "-m", "wings.platform.local_platform", settings.model_dump_json()]
        supervisor = launch(command, environment, log)
        me = PartState(name="supervisor", pid=supervisor.pid, began=began(supervisor))  # for `down`, until it is ready
        write_atomically(state_file(home), PlatformState(supervisor=me).model_dump_json())
        console.print("Starting Prefect, MLflow, the deployments and the workers ...", highlight=False)
    state = _wait_until_ready(home, supervisor, console)
    addresses = {part.name: part.address for part in state.parts}
    if runs:
        _require_same(state, settings)
        _use_prefect(home, addresses["prefect"])
        deploy_again(home, settings)
    _print_addresses(console, addresses, password_hint(home))
    return 0


def _print_addresses(console: Console, addresses: Mapping[str, str], hint: str) -> None:
    console.print(f"Prefect  {addresses['prefect']}/deployments", highlight=False, soft_wrap=True)
    console.print(f"         {escape(hint)}", highlight=False, soft_wrap=True)
    mlflow = f"{addresses['mlflow']}/#/experiments?workflowType=machine_learning"
    console.print(f"MLflow   {mlflow}", highlight=False, soft_wrap=True)
    if address := addresses.get("serving"):
        console.print(f"Serving  {address}", highlight=False, soft_wrap=True)
        if not responds(f"{address}/v2/health/ready"):
            console.print(NO_MODEL, highlight=False, soft_wrap=True)
    console.print("Start a run: gauntlet-run/model on Prefect's page, Run. Stop everything: gauntlet down")


def show_status(options: argparse.Namespace) -> int:
    """Print the parts; return 0 when all are ready, else 1."""
    home = Home.find()
    state = read_state(home)
    alive = state is not None and _supervised(home)
    notes = _notes(home, state if alive else None)
    if options.json:
        known = {"running": alive, **(state.model_dump() if state else {})}
        print(json.dumps(known | {key: value for values, _ in notes for key, value in values.items()}, indent=1))  # noqa: T201
    elif state is None:
        Output().print("Nothing runs. Start it with: gauntlet up", highlight=False)
    else:
        Output().print(_table(state))
        Output().print(escape(password_hint(home)), highlight=False, soft_wrap=True)
        for line in (*map(escape, _problems(home, state)), *(line for _, line in notes if line)):
            Output().print(line, highlight=False, soft_wrap=True)
        if not alive:
            Output().print("The supervisor has ended: nothing is restarted. Fix: gauntlet up", highlight=False)
    return 0 if state is not None and alive and state.is_ready else 1


def stop_platform(options: argparse.Namespace) -> int:
    """Stop everything; return 0 also when nothing runs."""
    home = Home.find()
    state = read_state(home)
    supervisor = state.supervisor.process if state else None
    if supervisor is not None:
        stop(supervisor, patience_s=DOWN_TIMEOUT_S)
    _stop_left_over(home)
    Output().print("Nothing runs any more." if state else "Nothing runs.", highlight=False)
    return 0


def _settings(options: argparse.Namespace) -> PlatformSettings:
    """Return the settings of the platform."""
    settings = ((name, wing.settings(options)) for name, wing in platform_wings().items())
    wings = {name: wing_settings for name, wing_settings in settings if wing_settings is not None}
    ports = {f"{name}_port": getattr(options, f"{name}_port") or usual for name, usual in PORTS.items()}
    return PlatformSettings(**ports, wings=wings)


def _require_ports(options: argparse.Namespace, state: PlatformState | None) -> None:
    """Raise `ConfigError` where a port that was asked for is another program's, or what runs has another one."""
    known = {part.name: part.address for part in state.parts} if state else {}
    for name in PORTS:
        if (asked := getattr(options, f"{name}_port")) is None:
            continue
        option = f"--{name}-port {asked}"
        if name in known and urlsplit(known[name]).port != asked:
            raise ConfigError(f"{option}: it runs on {known[name]} already. Fix: gauntlet down, and up again")
        if name not in known and Port.take(asked).number != asked:
            raise ConfigError(f"{option}: another program has this port. Fix: name another one, or none")


def _require_same(state: PlatformState | None, settings: PlatformSettings) -> None:
    """Raise `ConfigError` when the platform runs, and does not do what is asked of wings."""
    if state and state.parts:  # otherwise it only begins
        for name, wing_settings in settings.wings.items():
            platform_wings()[name].require_same(wing_settings, state.serves)


def _notes(home: Home, state: PlatformState | None) -> list[tuple[JsonObject, str]]:
    """Return what wings add to the status."""
    api = next((part.address for part in state.parts if part.name == "prefect" and part.ready), "") if state else ""
    if api:
        _use_prefect(home, api)
    return [wing.status(state.serves if state and api else "") for wing in platform_wings().values()]


def _use_prefect(home: Home, address: str) -> None:
    """Let this process use the platform's server; Prefect reads the settings when it is imported."""
    os.environ |= prefect_variables(home, f"{address}/api")


def _supervised(home: Home) -> bool:
    state = read_state(home)
    return bool(state and state.supervisor.process) or is_locked(supervisor_lock(home))


def _stop_left_over(home: Home) -> None:
    """Stop what a supervisor that was killed has left behind, and forget it."""
    for process in left_over(home):
        stop(process)
    state_file(home).unlink(missing_ok=True)


def _wait_until_ready(home: Home, supervisor: psutil.Process | None, console: Console) -> PlatformState:
    """Return the state when every part is ready, and name each one that becomes so."""
    deadline, log = time.monotonic() + READY_TIMEOUT_S, home.root / "platform" / "supervisor.log"
    state, announced = read_state(home), set[str]()
    while time.monotonic() < deadline:
        state = read_state(home)
        for part in state.parts if state else ():
            line = f"{part.name} is ready" if part.ready else part.error and f"{part.name}: {part.error}"
            if line and line not in announced:
                console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
                announced.add(line)
        if state is not None and state.is_ready:
            return state
        if not (supervisor and is_alive(supervisor)) and not _supervised(home):  # by another `up`
            raise StageError(f"the supervisor has ended; see {log}")
        time.sleep(POLL_S)
    errors = "; ".join(_problems(home, state)) if state else f"see {log}"
    raise StageError(f"not ready after {READY_TIMEOUT_S:g} s: {errors}")


def _problems(home: Home, state: PlatformState) -> Iterator[str]:
    for part in state.parts:
        log = home.root / LOGS.get(part.name, f"platform/{part.name}.log")
        if not part.ready:
            yield f"{part.name}: {part.error or f'is still starting; see {log}'}"
        elif part.pid is not None and part.process is None:
            yield f"{part.name}: it has ended; see {log}"


def _table(state: PlatformState) -> Table:
    table = plain_table()
    for title in ("part", "state", "process", "restarts", "address"):
        table.add_column(title, justify="right" if title in ("process", "restarts") else "left")
    for part in state.parts:
        process = str(part.pid) if part.process else ""
        table.add_row(part.name, escape(_word(part)), process, str(part.restarts), escape(part.address))
    return table


def _word(part: PartState) -> str:
    if not part.ready:
        return "failed" if part.error else "starting"
    if part.serves and not responds(f"{part.address}/v2/health/ready"):
        return "waits for a model"
    return "ready" if part.process else "done" if part.pid is None else "ended"
