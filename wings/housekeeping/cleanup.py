"""What a home can lose: old runs, and results, artifacts and leftovers that no kept run refers to."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from flows.record.artifact_paths import artifact_paths
from flows.record.home import Home
from flows.record.journal import SAVED, Journal, everything_sent
from flows.record.locks import is_locked

DAY_S = 86_400


@dataclass(frozen=True)
class Cleanup:
    """What is removed, by kind."""

    runs: tuple[Path, ...]
    results: tuple[Path, ...]
    artifacts: tuple[Path, ...]
    leftovers: tuple[Path, ...]
    """Of writes that were killed."""
    unsent: tuple[Path, ...]
    """Old runs that stay, because MLflow has not received all of them."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Everything that is removed; results go before the artifacts that they name."""
        return (*self.runs, *self.results, *self.artifacts, *self.leftovers)

    @property
    def size_bytes(self) -> int:
        """The disk space that it frees."""
        files = (file for path in self.paths for file in (path.rglob("*") if path.is_dir() else (path,)))
        return sum(file.lstat().st_size for file in files if not file.is_dir())

    def remove(self) -> None:
        """Remove everything; what is killed in between is finished by the next clean-up."""
        for path in self.paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def plan_cleanup(home: Home, keep_runs: int | None = None, older_than_days: float | None = None) -> Cleanup:
    """Return what can be removed while no run is in progress.

    Args:
        home: the home.
        keep_runs: number of newest runs to keep; by default all.
        older_than_days: only runs that ended longer ago are removed; by default of any age.
    """
    runs = home.run_folders()
    old = runs[: max(0, len(runs) - keep_runs)] if keep_runs is not None else runs
    before = time.time() - DAY_S * (older_than_days or 0)
    selects = keep_runs is not None or older_than_days is not None
    old = [run for run in old if selects and max(p.stat().st_mtime for p in (run, *run.iterdir())) < before]
    unsent = [run for run in old if not everything_sent(run)]
    removed = [run for run in old if run not in unsent]
    kept = [run for run in runs if run not in removed]

    keys = {event["key"] for run in kept for event in Journal(run / "journal.jsonl") if "key" in event}
    results = [path for path in home.results.glob("*.json") if path.stem not in keys]
    records = [run / name for run in kept for name in ("report.json", SAVED)]
    records += [home.results / f"{key}.json" for key in keys]
    kept_artifacts = {(home.store.root / path).parent for path in artifact_paths(records)}
    artifacts = [path for path in home.store.root.glob("??/*") if path not in kept_artifacts]
    leftovers = [
        *home.store.root.glob("incoming/*"),
        *home.results.glob(".*"),
        *home.runs.glob("*/.*"),
        *home.sent.glob(".*"),
    ]
    leftovers += [path for path in home.work.glob("*") if not is_locked(home.locks / path.name)]
    return Cleanup(tuple(removed), tuple(results), tuple(artifacts), tuple(leftovers), tuple(unsent))
