"""The folder that holds everything a run leaves: `.gauntlet`, or `$GAUNTLET_HOME`."""

from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.artifact import Store
from gauntlet.core.workspace import gauntlet_home


@dataclass(frozen=True)
class Home:
    """Paths under one root. Deleting `work` and `results` is always safe: they are computed again."""

    root: Path

    @classmethod
    def find(cls) -> "Home":
        """Return the home of this process."""
        return cls(gauntlet_home())

    @property
    def store(self) -> Store:
        """Every artifact, by content."""
        return Store(self.root / "store")

    @property
    def results(self) -> Path:
        """Reports of finished work, by cache key."""
        return self.root / "results"

    @property
    def work(self) -> Path:
        """Unfinished work, by cache key."""
        return self.root / "work"

    @property
    def runs(self) -> Path:
        """One folder a run: journal and report files."""
        return self.root / "runs"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.root / "locks"

    @property
    def in_use(self) -> Path:
        """Held shared by every run, and alone by a clean-up."""
        return self.root / "in-use.lock"

    @property
    def prefect(self) -> Path:
        """Prefect's own home, with the local server's database."""
        return self.root / "prefect"

    @property
    def mlflow_db(self) -> Path:
        """The database of the local MLflow store."""
        return self.root / "mlflow.db"

    @property
    def mlflow_uri(self) -> str:
        """The tracking store that is used when none is named."""
        return f"sqlite:///{self.mlflow_db}"

    def run_folders(self) -> list[Path]:
        """Return the folders of all runs, oldest first."""
        return sorted(p for p in self.runs.glob("*") if p.is_dir()) if self.runs.exists() else []

    def finished_run(self, run: str | None = None) -> Path | None:
        """Return the folder of the newest run that has a report and whose id starts with `run`."""
        done = [f for f in self.run_folders() if (f / "report.json").exists() and f.name.startswith(run or "")]
        return done[-1] if done else None
