"""`gauntlet up`, `status` and `down`: Prefect, MLflow, the deployments and workers, and a champion that is watched."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli.shared import given_limits, plain
from flows.record.home import Home
from flows.record.locks import is_locked
from flows.servers.local_platform import PROJECT, PlatformSettings, ServedChampion
from flows.servers.local_servers import free_port, launch, profile_api_url, responds, stop
from flows.servers.supervisor import PartState, PlatformState, read_state, state_file
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.promotion.ledger import checked_name
from gauntlet.promotion.replay_facts import ReplayLimits

if TYPE_CHECKING:
    from flows.servers.closed_loop import WatchState  # loads Prefect, which starting a process does not need

READY_TIMEOUT_S = 240.0
POLL_S = 0.2
NO_CHAMPION = "         there is no champion yet: it serves the first one that is promoted"


def start_platform(options: argparse.Namespace) -> int:
    """Start what does not run yet, wait until all of it is ready, and print the addresses.

    Raises:
        ConfigError: when the environment names another Prefect server, there is no checkout to deploy from, or what
            runs already serves another model.
        StageError: when a part does not become ready.
    """
    home, console = Home.find(), Console()
    if named := os.environ.get("PREFECT_API_URL") or profile_api_url():
        raise ConfigError(f"Prefect's settings name the server {named}; use it, or unset PREFECT_API_URL for `up`")
    if not (PROJECT / "prefect.yaml").is_file():
        raise ConfigError(f"{PROJECT / 'prefect.yaml'}: no such file; install the project from a checkout for `up`")
    settings, runs = _settings(options), _supervised(home)
    if runs:
        _require_served(home, options.serve)
    else:
        _stop_left_over(home)
        log = home.root / "platform" / "supervisor.log"
        environment = {**os.environ, "GAUNTLET_HOME": str(home.root)}
        command = [sys.executable, "-m", "flows.servers.local_platform", settings.model_dump_json()]
        launch(command, environment, log)
        console.print("Starting Prefect, MLflow, the deployments and the workers ...", highlight=False)
    state = _wait_until_ready(home)
    addresses = {part.name: part.address for part in state.parts}
    if runs and settings.served:
        _use_prefect(home, addresses["prefect"])
        from flows.servers.closed_loop import close_loop

        close_loop(home, settings.served)
    _print_addresses(console, addresses)
    return 0


def _print_addresses(console: Console, addresses: Mapping[str, str]) -> None:
    console.print(f"Prefect  {addresses['prefect']}/deployments", highlight=False, soft_wrap=True)
    mlflow = f"{addresses['mlflow']}/#/experiments?workflowType=machine_learning"
    console.print(f"MLflow   {mlflow}", highlight=False, soft_wrap=True)
    if address := addresses.get("serving"):
        console.print(f"Serving  {address}", highlight=False, soft_wrap=True)
        if not responds(f"{address}/v2/health/ready"):
            console.print(NO_CHAMPION, highlight=False, soft_wrap=True)
    console.print("Start a run: gauntlet/on-demand on Prefect's page, Run. Stop everything: gauntlet down")


def show_status(options: argparse.Namespace) -> int:
    """Print the parts; return 0 when all are ready, else 1."""
    home = Home.find()
    state = read_state(home)
    alive = state is not None and _supervised(home)
    watch = _watch(home, state) if state and alive else None
    if options.json:
        known = {"running": alive, **(state.model_dump() if state else {})}
        print(json.dumps({**known, "watch": watch.model_dump() if watch else None}, indent=1))  # noqa: T201
    elif state is None:
        Console().print("Nothing runs. Start it with: gauntlet up", highlight=False)
    else:
        Console().print(_table(state))
        if watch:
            Console().print(_watch_line(watch), highlight=False, soft_wrap=True)
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


def _settings(options: argparse.Namespace) -> PlatformSettings:
    """Return the settings of the platform, with free ports."""
    given_limits(ReplayLimits, options)
    replay = {name: value for name in ReplayLimits.model_fields if (value := getattr(options, name, None)) is not None}
    given = [f"--{name.replace('_', '-')}" for name in replay]
    given += ["--watch-every"] if options.watch_every is not None else []
    served = None
    if options.serve:
        every = {} if options.watch_every is None else {"watch_every_s": options.watch_every}
        name, port = checked_name(options.serve), free_port(options.serve_port)
        served = ServedChampion(name=name, port=port, replay=replay, **every)
    elif given:
        raise ConfigError(f"{given[0]}: nothing is served and watched. Fix: name a model with --serve NAME")
    prefect_port, mlflow_port = free_port(options.prefect_port), free_port(options.mlflow_port)
    return PlatformSettings(prefect_port=prefect_port, mlflow_port=mlflow_port, served=served)


def _require_served(home: Home, name: str) -> None:
    """Raise `ConfigError` when the platform runs, and does not serve what is asked for."""
    state = read_state(home)
    now = next((part.serves for part in state.parts if part.serves), "") if state else name  # it only begins
    if name and name != now:
        what = f"serves {now}" if now else "serves nothing"
        raise ConfigError(f"--serve {name}: what runs already {what}. Fix: gauntlet down, then gauntlet up again")


def _watch(home: Home, state: PlatformState) -> "WatchState | None":
    """Return the watch's schedule and its last look; None where nothing is served, or Prefect does not respond."""
    api = next((part.address for part in state.parts if part.name == "prefect" and part.ready), "")
    if not api or not any(part.serves for part in state.parts):
        return None
    _use_prefect(home, api)
    from flows.servers.closed_loop import read_watch

    try:
        return read_watch()
    except Exception:  # whatever is wrong with the server: the rest of the status is known without it
        return None


def _use_prefect(home: Home, address: str) -> None:
    """Let this process use the platform's server; Prefect reads the settings when it is imported."""
    os.environ |= {"PREFECT_API_URL": f"{address}/api", "PREFECT_HOME": str(home.prefect)}


def _watch_line(watch: "WatchState") -> str:
    looked = f"last look {watch.looked_at}: {watch.outcome}: {watch.message}" if watch.looked_at else "no look yet"
    return f"Watch of {plain(watch.name)}: every {watch.every_s:g} s; {plain(looked)}"


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
    if part.serves and not responds(f"{part.address}/v2/health/ready"):
        return "waits for a champion"
    return "ready" if part.process else "done" if part.pid is None else "ended"
