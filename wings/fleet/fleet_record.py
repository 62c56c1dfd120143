"""The record of a fleet: which models are done. A fleet that was killed goes on where it stopped."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil

from flows.record.home import Home, new_run_id
from flows.record.journal import Journal
from flows.record.locks import locked
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError
from wings.fleet.library.fleet_report import FleetReport, FleetResult, render_fleet


class FleetRecord:
    """One fleet's folder: a journal, what each model's process wrote, and at the end the report and its page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal.jsonl")

    @property
    def start(self) -> dict[str, object]:
        """The first event: the folder of models, the settings, and when it began."""
        return next(iter(self.journal), {})

    @property
    def ended(self) -> bool:
        """Whether all models were done."""
        return any(event["op"] == "end" for event in self.journal)

    def results(self) -> dict[str, FleetResult]:
        """Return the result of each model that is done, by its digest."""
        return {e["digest"]: FleetResult.model_validate(e["result"]) for e in self.journal if e["op"] == "finished"}

    def finished(self, digest: str, result: FleetResult) -> None:
        """Note a model's result, and the memory of this process, which must not grow with the number of models."""
        rss_bytes = psutil.Process().memory_info().rss
        self.journal.append("finished", digest=digest, result=result.model_dump(mode="json"), rss_bytes=rss_bytes)

    def file(self, digest: str, suffix: str) -> Path:
        """Return where a model's process writes, and create the folder."""
        path = self.folder / "models" / f"{digest[:16]}{suffix}"
        path.parent.mkdir(exist_ok=True)
        return path

    def outcome(self, digest: str) -> FleetResult | None:
        """Return what a model's process has written; None where it was killed before."""
        path = self.file(digest, ".json")
        return FleetResult.model_validate_json(path.read_bytes()) if path.exists() else None

    def report(self) -> FleetReport:
        """Return the report of a fleet whose models are all done."""
        return FleetReport.model_validate_json((self.folder / "fleet.json").read_bytes())

    def close(self, results: tuple[FleetResult, ...], seconds: float) -> FleetReport:
        """Write the report and its page, and note that all is done."""
        start = self.start
        report = FleetReport.model_validate(
            {
                "fleet_id": self.folder.name,
                "folder": start["folder"],
                "settings": start["settings"],
                "started_at": start["started_at"],
                "seconds": seconds,
                "results": results,
            }
        )
        write_atomically(self.folder / "fleet.json", report.model_dump_json(indent=1))
        write_atomically(self.folder / "fleet.html", render_fleet(report))
        self.journal.append("end")
        return report


@contextmanager
def fleet_record(home: Home, models: Path, settings: tuple[str, ...], *, fresh: bool) -> Iterator[FleetRecord]:
    """Open the record of the last fleet with this folder and these settings if it was interrupted, or a new one.

    Raises:
        ConfigError: when that fleet is at work in another process.
    """
    last = None if fresh else last_fleet(home, models, settings)
    record = last if last and not last.ended else FleetRecord(home.root / "fleets" / new_run_id("fleet"))

    def refuse() -> None:
        raise ConfigError(f"{models}: the fleet {record.folder.name} is at work on it in another process")

    with locked(record.folder / "lock", on_wait=refuse):
        if record is not last:
            started_at = datetime.now(UTC).isoformat(timespec="seconds")
            key = _key(models, settings)
            record.journal.append("start", **key, started_at=started_at, pid=os.getpid())
        yield record


def last_fleet(home: Home, models: Path, settings: tuple[str, ...]) -> FleetRecord | None:
    """Return the newest fleet with this folder and these settings."""
    key, journals = _key(models, settings), sorted((home.root / "fleets").glob("*/journal.jsonl"), reverse=True)
    records = (FleetRecord(journal.parent) for journal in journals)
    return next((record for record in records if {name: record.start.get(name) for name in key} == key), None)


def _key(models: Path, settings: tuple[str, ...]) -> dict[str, object]:
    return {"folder": str(models.resolve()), "settings": list(settings)}
