"""The reports of finished work, by cache key. A report is used only while all of its artifacts are intact."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gauntlet.core.artifact import Store, write_atomically
from gauntlet.core.report import Report


class ResultCache:
    """A folder of reports."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store

    def load(self, key: str, report_type: Any) -> Report[Any] | None:
        """Return the report of earlier work, or None where there is none or an artifact of it is not intact."""
        path = self.folder / f"{key}.json"
        if not path.is_file():
            return None
        try:
            report: Report[Any] = report_type.model_validate_json(path.read_bytes())
        except ValidationError:  # written for another version of the report, or damaged: the work is repeated
            return None
        intact = all(self.store.is_intact(artifact) for artifact in report.artifacts.values())
        return report.replace(cached=True) if intact else None

    def save(self, key: str, report: Report[Any]) -> None:
        """Save a report; a reader sees all of it or nothing."""
        write_atomically(self.folder / f"{key}.json", report.model_dump_json(indent=1))
