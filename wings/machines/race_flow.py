"""The flow that a worker of a pool runs: one target's race on the worker's machine, with files of the shared store."""

import logging
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows.failure import fails_with_its_reason
from flows.record.benchmark_slot import benchmark_slot
from flows.record.environment import environment
from flows.record.home import Home
from flows.record.locks import host, locked
from gauntlet.core.artifact import Artifact, Store, open_store, sha256_of
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.workspace import Workspace
from gauntlet.targets import Target
from tasks.benchmark.config import BenchmarkConfig
from wings.machines.library.remote import Machine, RemoteRace, race_here

log = logging.getLogger("gauntlet")

SHARED_STORE = "GAUNTLET_SHARED_STORE"
"""Environment variable: where this machine has the folder that runs use as their store."""


class RaceRequest(Frozen):
    """A race for another machine: settings, and files by their digests."""

    store: str = Field(description="address of the run's object store, or its folder as the run's machine sees it")
    target: Target
    config: BenchmarkConfig
    models: tuple[tuple[str, Artifact], ...] = Field(
        description="each candidate's name and file, the reference first; databases keep no order of keys"
    )
    golden: Artifact
    framework_model: Artifact | None = None

    @property
    def files(self) -> tuple[Artifact, ...]:
        """All files that the race needs."""
        source = (self.framework_model,) if self.framework_model else ()
        return (*(model for _, model in self.models), self.golden, *source)


@flow(name="gauntlet-race", flow_run_name="{request.target.name}", persist_result=False, log_prints=False)
@fails_with_its_reason
def race(request: RaceRequest) -> State[None]:
    """Race a target alone on this machine; the state's message is the artifact of the `RemoteRace`, as JSON.

    Args:
        request: what to race.

    Raises:
        StageError: when the shared store lacks a file, or the reference cannot be measured.
    """
    log.setLevel(logging.INFO)
    home = Home.find()
    shared = store_of_the_run(home, request)
    home.create()
    home.work.mkdir(exist_ok=True)
    with (
        locked(home.in_use, shared=True),  # a clean-up must not remove what is fetched, nor the folder
        tempfile.TemporaryDirectory(prefix="race-", dir=home.work, ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)
        for artifact in request.files:
            fetch(artifact, shared, home.store, folder)
        done = _race_alone(request, Workspace(home.store, folder))
        file = folder / f"race-{runtime.flow_run.id or 'here'}.json"
        file.write_text(done.model_dump_json())
        return Completed(message=shared.put(file).model_dump_json())


def _race_alone(request: RaceRequest, workspace: Workspace) -> RemoteRace:
    target = request.target
    on_wait = partial(log.info, "%s: waiting until this host is free", target.name)
    with host(alone=True, on_wait=on_wait), benchmark_slot():
        log.info("%s: racing %d models", target.name, len(request.models))
        done = race_here(
            request.config,
            workspace,
            target=target,
            models=dict(request.models),
            golden=request.golden,
            framework_model=request.framework_model,
            on_round=partial(workspace.progress, total=request.config.rounds, unit="round"),
        )
    return done.replace(machine=Machine.from_environment(environment()))


def store_of_the_run(home: Home, request: RaceRequest) -> Store:
    """Return the object store behind this machine's own folder, or the folder that both machines mount."""
    address = os.environ.get(SHARED_STORE) or request.store
    return open_store(home.store.root, address) if "://" in address else Store(Path(address))


def fetch(artifact: Artifact, shared: Store, own: Store, folder: Path) -> None:
    """Copy an artifact of the shared store into this machine's own, unless it is there.

    Raises:
        StageError: when it is missing, or its content does not match its digest.
    """
    if own.is_intact(artifact):
        return
    main = shared.path(artifact)  # an object store brings it into its folder, which is our own
    if shared.root == own.root:
        return
    if not main.is_file():
        raise StageError(
            f"{main}: the shared store has no such file on this machine; mount the run's store here, and name its "
            "folder: gauntlet worker --store FOLDER"
        )
    companions = (each for each in main.parent.iterdir() if each.is_file() and each != main)
    copies = [Path(shutil.copy(each, folder)) for each in (main, *companions)]
    if sha256_of(copies) != artifact.sha256:
        raise StageError(f"{main}: the content does not match its digest; start the run again with --fresh")
    own.put(*copies)
