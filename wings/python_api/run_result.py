"""What a run gives to a program or a notebook: the winner, the table, the report and the bundle."""

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gauntlet.bundle.delivery import deliver
from gauntlet.bundle.loading import load_bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import data_table
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import speedup

PAGE_HEIGHT_PX = 700
"""Of a report in a notebook."""


@dataclass(frozen=True)
class Winner:
    """The model that a run selected: `name`, `path`, `speedup`, `speedup_low`, `speedup_high`, `batch` and `target`.

    The speed-up is over the original, with its 95 % interval, at the batch size that decided.
    """

    name: str
    path: Path
    speedup: float
    speedup_low: float
    speedup_high: float
    batch: int
    target: str

    def __str__(self) -> str:
        gain = speedup(self.speedup, self.speedup_low, self.speedup_high)
        return f"{self.name}: {gain} at batch {self.batch} on {self.target}"


@dataclass(frozen=True)
class ReportPage:
    """A run's report as a page in the file `path`; a notebook shows it."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="{PAGE_HEIGHT_PX}" style="border:0"></iframe>'


@dataclass(frozen=True)
class RunResult:
    """A finished run: its `folder`, and in `details` everything that `report.json` has."""

    details: RunReport
    folder: Path
    store: Path

    def __str__(self) -> str:
        end = str(self.winner) if self.winner else f"failed at {self.details.stopped_at}: {self.details.reason}"
        return f"{self.details.run_id}: {end}\nReport: {self.report}"

    __repr__ = __str__

    @property
    def winner(self) -> Winner | None:
        """The selected model, which is the original where nothing is proven faster; None for a failed run."""
        best, path = timeline.winner(self.details), timeline.model_file(self.details, self.store)
        row = timeline.deciding_row(self.details, best.benchmark) if best else None
        if best is None or path is None or row is None:
            return None
        return Winner(best.name, path, row.speedup, row.speedup_low, row.speedup_high, row.batch, row.target)

    @property
    def table(self) -> Any:
        """The candidates: a pandas DataFrame where pandas is installed, or else a list of a dictionary a row."""
        return data_table([self._row(candidate) for candidate in timeline.ordered_candidates(self.details)])

    @property
    def report(self) -> ReportPage:
        """The page; a notebook shows it, `report.path` is its file."""
        return ReportPage(self.folder / "report.html")

    @cached_property
    def bundle(self) -> Predictor:
        """The winner, ready to predict, as `gauntlet.load` returns it.

        Raises:
            ConfigError: for a run without a bundle, or whose bundle was removed by `gauntlet clean`.
        """
        return load_bundle(self._bundle_file())

    def save(self, path: str | Path) -> Path:
        """Copy the bundle to a `.zip` file or a new folder, as `gauntlet bundle --out` does; return its path.

        Raises:
            ConfigError: as `bundle`, or when the path exists.
        """
        deliver(self._bundle_file(), Path(path))
        return Path(path)

    def _bundle_file(self) -> Path:
        artifact, store = timeline.bundle_artifact(self.details), Store(self.store)
        if artifact is None or not store.is_intact(artifact):
            gone = "has no bundle" if artifact is None else f"has lost its bundle {store.path(artifact)}"
            raise ConfigError(f"{self.details.run_id}: the run {gone}. Fix: run it again")
        return store.path(artifact)

    def _row(self, candidate: CandidateEntry) -> dict[str, Any]:
        row: dict[str, Any] = {
            "candidate": candidate.name,
            "verdict": "winner" if candidate.name == self.details.winner else candidate.status,
            self.details.metric: candidate.accuracy,
            "sqnr_db": candidate.sqnr_db,
            "size_mb": None if candidate.size_bytes is None else candidate.size_bytes / 1e6,
        }
        for batch, measured in sorted(timeline.own_rows(candidate).items()):
            row |= {f"b{batch}.p50_ms": measured.median_ms, f"b{batch}.speedup": measured.speedup}
            row |= {f"b{batch}.speedup_low": measured.speedup_low, f"b{batch}.speedup_high": measured.speedup_high}
        return row | {"target": candidate.target, "reason": candidate.reason}
