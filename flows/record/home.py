"""The folder that holds everything a run leaves: `.gauntlet`, or `$GAUNTLET_HOME`."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from flows.record.locks import locked
from gauntlet.core.artifact import STORE_ADDRESS, open_store
from gauntlet.core.errors import ConfigError
from gauntlet.core.workspace import gauntlet_home

MAX_NAMED = 3
"""Runs that a refusal names."""


class Home:
    """Paths under one root. Deleting `work` and `results` is always safe: they are computed again.

    `store` is the address of a store that machines share, by default `$GAUNTLET_STORE`; empty for none.
    """

    def __init__(self, root: Path, store: str | None = None) -> None:
        self.root = root
        address = os.environ.get(STORE_ADDRESS, "") if store is None else store
        self.store = open_store(root / "store", address)  # every artifact, by content
        self.results = root / "results"  # reports of finished work, by cache key
        self.work = root / "work"  # unfinished work, by cache key
        self.runs = root / "runs"  # one folder a run: journal and report files
        self.locks = root / "locks"
        self.sent = root / "mlflow-sent"  # what each MLflow server has, by content
        self.in_use = root / "in-use.lock"  # held shared by every run, and alone by a clean-up
        self.prefect = root / "prefect"  # Prefect's own home, with the local server's database
        self.mlflow_db = root / "mlflow.db"
        self.mlflow_uri = f"sqlite:///{self.mlflow_db}"  # the tracking store that is used when none is named

    @classmethod
    def find(cls) -> "Home":
        """Return the home of this process."""
        return cls(gauntlet_home())

    def create(self) -> None:
        """Make the folder if there is none; nobody else on the machine can read it: it holds users' data.

        Raises:
            ConfigError: where it cannot be made, or nothing can be written into it.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            reason = "" if os.access(self.root, os.W_OK | os.X_OK) else "not writable"
        except OSError as error:
            reason = error.strerror or type(error).__name__
        if reason:
            fix = "Fix: set GAUNTLET_HOME to a folder that you may write"
            raise ConfigError(f"{self.root}: cannot be the home of runs ({reason}). {fix}")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Create the home; no clean-up removes what is stored inside before a run has a record that names it."""
        self.create()
        with locked(self.in_use, shared=True):
            yield

    def run_folders(self) -> list[Path]:
        """Return the folders of all runs, oldest first."""
        return sorted(p for p in self.runs.glob("*") if p.is_dir()) if self.runs.exists() else []

    def finished_runs(self, run: str = "") -> list[Path]:
        """Return the folders of the runs that have a report and whose id starts with `run`, newest first."""
        return [f for f in self.run_folders()[::-1] if (f / "report.json").exists() and f.name.startswith(run)]

    def finished_run(self, run: str | None = None) -> Path | None:
        """Return the folder of the run that has a report and whose id starts with `run`; without it, the newest.

        Raises:
            ConfigError: when several start with it.
        """
        folders = self.finished_runs(run or "")
        folders = [folder for folder in folders if folder.name == run] or folders
        if run and len(folders) > 1:
            some = ", ".join(folder.name for folder in folders[:MAX_NAMED])
            raise ConfigError(f"{run}: {len(folders)} runs start with it: {some}. Fix: write more of the id")
        return next(iter(folders), None)

    def require_run(self, run: str | None = None) -> Path:
        """Return the folder of `finished_run`; `ConfigError` when there is none."""
        folder = self.finished_run(run)
        if folder is not None:
            return folder
        if not (known := [other.name for other in self.finished_runs()]):
            which = f"a run '{run}'" if run else "a finished run"
            fix = "Fix: start one with: gauntlet run MODEL --data DATA"
            raise ConfigError(f"{self.runs}: there is no report of {which}. {fix}")
        newest = f"available: {', '.join(known[:MAX_NAMED])}. Fix: list all with: gauntlet runs"
        raise ConfigError(f"{self.runs}: there is no report of a run '{run}'; {newest}")


OWN_RUNS: set[str] = set()
"""The ids of the runs of this process. Its number says less: in each of several containers, it may be 1."""


def new_run_id(name: str) -> str:
    """Return an id that sorts by time and names the model: `20260131-120000-digits-resnet18-1f2e`."""
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"
    OWN_RUNS.add(run_id)
    return run_id
