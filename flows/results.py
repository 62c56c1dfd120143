"""Finished work, by key. A result counts only while every file that it names is whole."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.artifact import Store, write_whole
from tasks.report import Report


class Results:
    """A folder of reports."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store

    def load(self, key: str, report_type: Any) -> Report[Any] | None:
        """Return the report of earlier work, or None where there is none or one of its artifacts is not intact."""
        path = self.folder / f"{key}.json"
        if not path.is_file():
            return None
        try:
            report: Report[Any] = report_type.model_validate_json(path.read_bytes())
        except ValidationError:  # written by another version of a report, or damaged: do the work again
            return None
        intact = all(self.store.intact(artifact) for artifact in report.artifacts.values())
        return report.replace(cached=True) if intact else None

    def save(self, key: str, report: Report[Any]) -> None:
        """Keep a report; a reader sees all of it or nothing."""
        write_whole(self.folder / f"{key}.json", report.model_dump_json(indent=1))
