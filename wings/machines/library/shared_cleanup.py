"""What a store that machines share can lose: records of old runs, and what the record of no kept run names."""

import contextlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pydantic import ValidationError

from gauntlet.core.errors import ConfigError
from wings.machines.library.object_store import LIVE_S, ObjectStore, SharedRun

if TYPE_CHECKING:
    from obstore import ObjectMeta

BATCH = 500
DAY_S = 86_400


@dataclass(frozen=True)
class SharedCleanup:
    """What is removed, by kind."""

    runs: "tuple[ObjectMeta, ...]"
    results: "tuple[ObjectMeta, ...]"
    files: "tuple[ObjectMeta, ...]"
    """Of artifacts."""
    leases: "tuple[ObjectMeta, ...]"
    parts: dict[Path, int]
    """Files of uploads that were killed, as `leases` are of processes, with their sizes in bytes."""

    @property
    def objects(self) -> "tuple[ObjectMeta, ...]":
        """Everything that is removed, in this order; results go before the artifacts that they name."""
        return (*self.runs, *self.results, *self.files, *self.leases)

    @property
    def leftovers(self) -> "tuple[ObjectMeta | Path, ...]":
        """What was left by processes that were killed."""
        return (*self.leases, *self.parts)

    @property
    def artifacts(self) -> tuple[str, ...]:
        """The folders of the artifacts; one may have several files."""
        return tuple({_folder(file) for file in self.files})

    @property
    def size_bytes(self) -> int:
        """The space that it frees."""
        return sum(file["size"] for file in self.objects) + sum(self.parts.values())

    def remove(self, store: ObjectStore) -> None:
        """Remove everything; what is killed in between is finished by the next clean-up."""
        paths = [file["path"] for file in self.objects]
        for start in range(0, len(paths), BATCH):
            store.delete(*paths[start : start + BATCH])
        for part in self.parts:
            part.unlink(missing_ok=True)


@contextmanager
def no_run_in_progress(store: ObjectStore) -> Iterator[None]:
    """Keep runs of all machines from starting; raise `ConfigError` when one is in progress.

    A run takes its lease before it looks for a clean-up, and a clean-up before it looks for runs: one of the two sees
    the other.
    """
    with store.lease(f"clean-{uuid4().hex[:8]}"):
        if runs := store.leases("run-"):
            names = ", ".join(name.removeprefix("run-") for name in runs)
            raise ConfigError(f"{store.address}: a run is in progress ({names}); clean when it has ended")
        yield


def plan_shared_cleanup(
    store: ObjectStore, keep_runs: int | None = None, older_than_days: float | None = None
) -> SharedCleanup:
    """Return what can be removed inside `no_run_in_progress`; limits are those of `plan_cleanup`, for all machines."""
    runs = sorted(store.objects("runs"), key=lambda file: file["path"])  # ids begin with the time
    old = runs[: max(0, len(runs) - keep_runs)] if keep_runs is not None else runs
    before = time.time() - DAY_S * (older_than_days or 0)
    selects = keep_runs is not None or older_than_days is not None
    removed = [run for run in old if selects and run["last_modified"].timestamp() < before]
    kept = [_record(store, run) for run in runs if run not in removed]
    results = {f"results/{key}.json" for run in kept if run for key in run.results}
    folders = {f"store/{path.rpartition('/')[0]}" for run in kept if run for path in run.artifacts}
    leases = store.objects("leases")
    live = {f"leases/{name}" for name in store.leases("")}
    return SharedCleanup(
        runs=tuple(removed),
        results=tuple(file for file in store.objects("results") if file["path"] not in results),
        files=tuple(file for file in store.objects("store") if _folder(file) not in folders),
        leases=tuple(file for file in leases if file["path"] not in live),
        parts=_abandoned_parts(store.address),
    )


def _abandoned_parts(address: str) -> dict[Path, int]:
    """Return the files `NAME#1` of killed uploads into a folder, and their bytes; the store lists none of them."""
    folder, parts = Path(unquote(urlsplit(address).path)), dict[Path, int]()
    for part in folder.rglob("*#*") if address.startswith("file:") else ():
        with contextlib.suppress(FileNotFoundError):  # its upload has just ended
            if re.search(r"#\d+$", part.name) and (state := part.stat()).st_mtime < time.time() - LIVE_S:
                parts[part] = state.st_size
    return parts


def _folder(file: "ObjectMeta") -> str:
    return file["path"].rpartition("/")[0]


def _record(store: ObjectStore, run: "ObjectMeta") -> SharedRun | None:
    text = store.published(run["path"])
    try:
        return SharedRun.model_validate_json(text) if text is not None else None
    except ValidationError as error:
        fix = "update this machine if another one has a newer version of the project, otherwise delete the object"
        raise ConfigError(
            f"{store.address}/{run['path']}: not a record of a run, so what to keep is unknown. Fix: {fix}"
        ) from error
