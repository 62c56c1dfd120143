"""What a run leaves in a store that machines share, so that their clean-ups know what it needs."""

import json
import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.record.home import Home
from flows.record.journal import Journal
from gauntlet.core.errors import PipelineError
from gauntlet.core.frozen import Frozen

log = logging.getLogger("gauntlet")


class SharedRun(Frozen):
    """What one run has used."""

    run_id: str
    host: str
    ended_at: str = Field(description="ISO 8601, UTC")
    results: tuple[str, ...] = Field(description="cache keys")
    artifacts: tuple[str, ...] = Field(description="paths in the store")


def publish_run(home: Home, folder: Path) -> None:
    """Tell the other machines what a run has used; without a shared store, nothing happens."""
    if not home.store.address:
        return
    results = {event["key"] for event in Journal(folder / "journal.jsonl") if "key" in event}
    records = [folder / "report.json", *(home.results / f"{key}.json" for key in results)]
    run = SharedRun(
        run_id=folder.name,
        host=socket.gethostname(),
        ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
        results=tuple(sorted(results)),
        artifacts=tuple(sorted(artifact_paths(records))),
    )
    try:
        home.store.publish(f"runs/{run.run_id}.json", run.model_dump_json())
    except PipelineError as error:
        log.warning("a clean-up may remove what this run has in %s: %s", home.store.address, error)


def artifact_paths(records: list[Path]) -> set[str]:
    """Return the path of every artifact that some files of JSON name."""
    return {path for record in records if record.exists() for path in _paths(json.loads(record.read_bytes()))}


def _paths(value: Any) -> Iterator[str]:
    """Yield the path of every artifact in a JSON value."""
    if isinstance(value, dict):
        if {"sha256", "path"} <= value.keys():
            yield value["path"]
        else:
            for part in value.values():
                yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)
