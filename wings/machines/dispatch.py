"""The run's side of races on other machines: give each to its work pool, wait, and take its rows back."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed
from pydantic import ValidationError

from flows.search.base import Reference
from flows.stage import Line
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.errors import StageError, one_line
from gauntlet.targets import Target
from tasks.benchmark.config import BenchmarkConfig
from wings.machines.library.remote import RemoteRace, plan_for, remote
from wings.machines.pools import alive_workers, deployment_name, why_absent
from wings.machines.race_flow import RaceRequest

log = logging.getLogger("gauntlet")

POLL_S = 2.0
VISIBLE_S = 60.0
"""How long a file that another machine has written may stay invisible: NFS clients keep folder listings this long."""
RETURN_S = 60.0
"""How long workers may stay missing once Prefect's server is back: they send a heartbeat every 30 seconds."""
WORKER_LABEL = "prefect.worker.name"
"""Prefect writes the worker that takes a flow run into its labels."""


@dataclass
class _Pending:
    """A race that was given to a pool."""

    target: Target
    flow_run: UUID
    deadline: float
    worker: str | None = None
    completed: float | None = None
    """When it was first seen to be completed."""


@dataclass
class RemoteRaces:
    """The races of one run on other machines."""

    config: BenchmarkConfig
    store: Store
    models: Mapping[str, Artifact]
    golden: Artifact
    framework_model: Artifact | None = None
    rows: dict[str, Artifact] = field(default_factory=dict)
    """Target -> the file in which its machine left its race."""
    _done: dict[str, RemoteRace] = field(default_factory=dict)
    _pending: list[_Pending] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)
    _trusted_from: float = 0.0
    """When the server knows again which workers are alive."""

    @property
    def flow_runs(self) -> tuple[UUID, ...]:
        """The flow runs that have not ended."""
        return tuple(race.flow_run for race in self._pending)

    def start(self) -> None:
        """Give each target's race to its pool, unless no machine of the pool can race."""
        if not self.config.remote_targets:
            return
        with get_client(sync_client=True) as client:
            reasons = {pool: why_absent(client, pool) for pool in {str(t.on) for t in self.config.remote_targets}}
        for target in self.config.remote_targets:
            if reason := reasons[str(target.on)]:
                log.warning("%s is unavailable: %s", target.name, reason)
                self._done[target.name] = RemoteRace.absent(target, self.models, reason)
                continue
            request = RaceRequest(
                store=self.store.address or str(self.store.root),
                target=target,
                config=plan_for(self.config, target),
                models=tuple(self.models.items()),
                golden=self.golden,
                framework_model=self.framework_model if target.model_suffixes else None,
            )
            parameters = {"request": request.model_dump(mode="json")}
            flow_run = cast(FlowRun, run_deployment(deployment_name(str(target.on)), parameters=parameters, timeout=0))
            self._pending.append(_Pending(target, flow_run.id, time.monotonic() + self.config.remote_timeout_s))
            log.info("%s: given to the work pool %s", target.name, target.on)

    def collect(self) -> tuple[RemoteRace, ...]:
        """Wait until each race has ended, was lost or took too long; return them in the configuration's order."""
        if self._pending:
            log.info("waiting for %s", ", ".join(race.target.name for race in self._pending))
        with get_client(sync_client=True) as client:
            while self._pending:
                for race in [*self._pending]:
                    try:
                        self._look(client, race)
                    except ObjectNotFound:
                        reason = f"its flow run or the work pool {race.target.on!r} was deleted"
                        self._end(race, RemoteRace.failed(race.target, self.models, reason))
                    except (httpx.TransportError, httpx.HTTPStatusError) as error:  # the server may come back
                        self._trusted_from = time.monotonic() + RETURN_S
                        self._say_once(f"Prefect's server does not respond, waiting for it: {one_line(error)}")
                    if race in self._pending and time.monotonic() > race.deadline:
                        self._end(race, self._timed_out(race))
                if self._pending:
                    time.sleep(POLL_S)
        return tuple(self._done[target.name] for target in self.config.remote_targets)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning(text)

    def cancel(self) -> None:
        """Cancel the races that have not ended; nobody waits for them."""
        for race in self._pending:
            with contextlib.suppress(Exception), get_client(sync_client=True) as client:
                client.set_flow_run_state(race.flow_run, Cancelling())
        self._pending.clear()

    def _look(self, client: SyncPrefectClient, race: _Pending) -> None:
        """Take a race from the pending ones if it has ended."""
        pool = str(race.target.on)
        alive = alive_workers(client, pool)
        flow_run = client.read_flow_run(race.flow_run)  # behind the workers: a race that has just ended is not lost
        state, worker = flow_run.state, flow_run.labels.get(WORKER_LABEL)
        if worker is not None and race.worker != worker:
            race.worker = str(worker)
            log.info("%s: taken by %s", race.target.name, worker)
        if state is not None and state.is_completed():
            self._take_rows(race, state.message or "")
        elif state is not None and state.is_final():
            self._end(race, RemoteRace.failed(race.target, self.models, _why(flow_run)))
        elif time.monotonic() < self._trusted_from:
            return
        elif race.worker is None and not alive:
            reason = f"no worker of the work pool {pool!r} took the race, and none is alive any more"
            client.set_flow_run_state(race.flow_run, Cancelled(message=reason), force=True)
            self._end(race, RemoteRace.absent(race.target, self.models, reason))
        elif race.worker is not None and race.worker not in alive:
            reason = f"its worker {race.worker} was lost in the middle of the race: its heartbeats stopped"
            client.set_flow_run_state(race.flow_run, Crashed(message=reason), force=True)
            self._end(race, RemoteRace.failed(race.target, self.models, reason))

    def _take_rows(self, race: _Pending, message: str) -> None:
        race.completed = race.completed or time.monotonic()
        try:
            artifact = Artifact.model_validate_json(message)
            if not self.store.is_intact(artifact) and time.monotonic() < race.completed + VISIBLE_S:
                return
            result = self._read(race.target, artifact)
        except ValidationError as error:
            reason = f"its worker has another version of this project, whose rows cannot be read: {one_line(error)}"
            self._end(race, RemoteRace.failed(race.target, self.models, reason))
        except StageError as error:
            self._end(race, RemoteRace.failed(race.target, self.models, str(error)))
        else:
            self.rows[race.target.name] = artifact
            self._end(race, result)

    def _read(self, target: Target, artifact: Artifact) -> RemoteRace:
        if not self.store.is_intact(artifact):
            raise StageError(f"{self.store.path(artifact)} is missing: does its worker use the run's store?")
        race = RemoteRace.model_validate_json(self.store.path(artifact).read_bytes())
        raced = [result.candidate for result in race.results]
        if (race.target, raced) != (target.name, [*self.models]):
            raise StageError(f"its rows are those of {race.target} and {', '.join(raced)}")
        return race

    def _timed_out(self, race: _Pending) -> RemoteRace:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            client.set_flow_run_state(race.flow_run, Cancelling())
        reason = f"no result within {self.config.remote_timeout_s:g} s (benchmark.remote_timeout_s)"
        return RemoteRace.failed(race.target, self.models, reason)

    def _end(self, race: _Pending, result: RemoteRace) -> None:
        self._pending.remove(race)
        self._done[race.target.name] = result
        if result.failure:
            log.warning("%s failed: %s", race.target.name, result.failure)
        elif result.machine is None or not result.reference:
            reasons = {entry.reason for entry in result.results} - {""}
            log.warning("%s has no rows: %s", race.target.name, "; ".join(map(str, reasons)))
        else:
            log.info("%s: raced on %s, %s", race.target.name, result.machine.host, result.machine.processor)


@contextmanager
def races_elsewhere(
    line: Line, config: BenchmarkConfig, models: Mapping[str, Artifact], reference: Reference
) -> Iterator[Callable[[], None]]:
    """Start the races of the targets on other machines, so that they run beside what is done inside.

    What it gives waits for them and runs the stage that judges them; without such targets, it does nothing. Those that
    have not ended when the block is left are cancelled.
    """
    if not config.remote_targets:
        yield lambda: None
        return
    races = RemoteRaces(config, line.run.home.store, models, reference.golden, reference.network)

    def record() -> None:
        if collected := races.collect():
            line.stage(remote, config, races=collected, rows=races.rows)

    try:
        races.start()
        yield record
    finally:
        races.cancel()


def _why(flow_run: FlowRun) -> str:
    """Return why a flow run has no result, in one line."""
    state = flow_run.state
    return one_line(state.message or "no reason given") if state else "no reason given"
