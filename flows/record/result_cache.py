"""The reports of finished work, by cache key. A report is used only while all of its artifacts are intact."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gauntlet.core.artifact import Store, write_atomically
from gauntlet.core.report import Report


class ResultCache:
    """A folder of reports, behind which are those of other machines, where the store is shared."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store

    def load(self, key: str, report_type: Any) -> Report[Any] | None:
        """Return the report of earlier work, or None where there is none or an artifact of it is not intact."""
        path = self.folder / f"{key}.json"
        here = path.is_file()
        text = path.read_bytes() if here else self.store.published(f"results/{key}.json")
        if text is None:
            return None
        try:
            report: Report[Any] = report_type.model_validate_json(text)
        except ValidationError:  # written for another version of the report, or damaged: the work is repeated
            return None
        intact = all(self.store.is_intact(artifact) for artifact in report.artifacts.values())
        if not intact:
            return None
        if here:
            self.store.publish(f"results/{key}.json", text.decode())
        else:
            write_atomically(path, text.decode())
        return report.replace(cached=True)

    def save(self, key: str, report: Report[Any]) -> None:
        """Save a report; a reader sees all of it or nothing."""
        text = report.model_dump_json(indent=1)
        write_atomically(self.folder / f"{key}.json", text)
        self.store.publish(f"results/{key}.json", text)
