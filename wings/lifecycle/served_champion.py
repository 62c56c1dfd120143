"""What `gauntlet up --serve NAME` adds to the platform: a champion that is served, watched and retrained.

This module is the object of the entry point `platform.lifecycle`, for the wing that has `gauntlet up`.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil
from pydantic import Field

from flows.cli.shared import given_limits, plain
from flows.record.home import Home
from flows.servers.local_servers import launch, wait_until_up
from flows.servers.ports import Port
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.core.kinds import removed
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.promotion.ledger import checked_name
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits

WORKERS = {"watcher": "watch"}
"""A look at a champion does not wait for a training."""


class ServedChampion(Frozen):
    """A registered model whose champion is served, watched and retrained."""

    name: str
    port: int
    watch_every_s: int = Field(300, ge=1, description="between two looks")
    log_share: float = Field(1.0, gt=0, le=1, description="of the requests that is logged")
    limits: JsonObject = Field({}, description="limits of the watch that were given")
    replay: JsonObject = Field({}, description="limits of a retraining that were given")


def settings(options: argparse.Namespace) -> JsonObject | None:
    """Return the champion that `--serve` names; None without it."""
    given_limits(ReplayLimits, options)
    given_limits(MonitorLimits, options)
    replay = _given(options, ReplayLimits.model_fields)
    limits = _given(options, [name for name in MonitorLimits.model_fields if name not in replay])
    logged = _given(options, ["log_share"])
    flags = [f"--{name.replace('_', '-')}" for name in (*replay, *limits, *logged)]
    flags += ["--watch-every"] if options.watch_every is not None else []
    if options.serve:
        if missing := removed("command.serving"):
            raise ConfigError(f"--serve {options.serve}: {missing}")
        every = {} if options.watch_every is None else {"watch_every_s": options.watch_every}
        name, port, share = checked_name(options.serve), options.serve_port, getattr(options, "log_share", None)
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"--log-share {share}: it has to be above 0 and at most 1")
        return ServedChampion(name=name, port=port, replay=replay, limits=limits, **logged, **every).model_dump()
    if flags:
        raise ConfigError(f"{flags[0]}: nothing is served and watched. Fix: name a model with --serve NAME")
    return None


def _given(options: argparse.Namespace, names: Iterable[str]) -> JsonObject:
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def require_same(settings: JsonObject, serves: str) -> None:
    """Raise `ConfigError` when what runs serves another model, or none."""
    name = settings["name"]
    if name != serves:
        what = f"serves {serves}" if serves else "serves nothing"
        raise ConfigError(f"--serve {name}: what runs already {what}. Fix: gauntlet down, then gauntlet up again")


def parts(home: Home, settings: JsonObject) -> list[tuple[str, Callable[[], psutil.Process], str, str]]:
    """Return the champion's server: its name, what starts it, its address and the model that it serves."""
    served = ServedChampion.model_validate(settings)
    port = Port.take(served.port)
    return [("serving", partial(start_serving, home, served, port), port.address, served.name)]


def logged_requests(home: Home, model: str) -> Path:
    """Return the folder of a served model's request log."""
    return home.root / "request-logs" / model


def start_serving(home: Home, served: ServedChampion, port: Port) -> psutil.Popen:
    """Serve a champion with a request log, and wait until the server answers; `StageError` when it does not.

    Where there is no champion yet, the server waits for the first one.
    """
    log, model = home.root / "platform" / "serving.log", f"models:/{served.name}@champion"
    command = [sys.executable, "-m", "flows.cli.main", "serve", model, "--wait", "--name", served.name]
    command += ["--fd", "0"]
    command += ["--request-log", str(logged_requests(home, served.name))]
    command += ["--log-inputs", "all", "--log-share", str(served.log_share)]  # a retraining needs inputs
    process = launch(command, dict(os.environ), log, port.listener())
    wait_until_up(process, f"{port.address}/v2/health/live", f"gauntlet serve {model}", log)
    return process


def after_deployment(settings: JsonObject | None) -> list[str]:
    """Return the command that closes the loop around the champion, or opens it where none is served."""
    champion = [] if settings is None else [ServedChampion.model_validate(settings).model_dump_json()]
    return ["-m", "wings.lifecycle.closed_loop", *champion]


def status(serves: str) -> tuple[JsonObject, str]:
    """Return the watch's schedule and its last look."""
    watch = None
    if serves:
        from wings.lifecycle.closed_loop import read_watch  # loads Prefect

        try:
            watch = read_watch()
        except Exception:  # whatever is wrong with the server: the rest of the status is known without it
            watch = None
    if watch is None:
        return {"watch": None}, ""
    looked = f"last look {watch.looked_at}: {watch.outcome}: {watch.message}" if watch.looked_at else "no look yet"
    when = "paused" if watch.paused else f"every {watch.every_s:g} s"
    return {"watch": watch.model_dump()}, f"Watch of {plain(watch.name)}: {when}; {plain(looked)}"
