"""The artifacts that records name, which a store keeps."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from flows.record.home import Home
from flows.record.journal import Journal

IN_STORE = re.compile(r"(?:.*/)?([0-9a-f]{2}/[0-9a-f]{64}-[^/]+)(/.+)?")
"""The path of an artifact in some store, or of its folder, as the configuration of a run may have it."""


def keep_in_shared_store(home: Home, folder: Path) -> None:
    """Tell the other machines what a run has used; without a shared store, nothing happens."""
    if home.store.address:
        results = {event["key"] for event in Journal(folder / "journal.jsonl") if "key" in event}
        records = [folder / "report.json", *(home.results / f"{key}.json" for key in results)]
        home.store.keep_for(folder.name, results, artifact_paths(records))


def artifact_paths(records: list[Path]) -> set[str]:
    """Return the path of every artifact that some files of JSON, or of a value a line, name."""
    known = [record for record in records if record.exists()]
    values = (Journal(record) if record.suffix == ".jsonl" else [json.loads(record.read_bytes())] for record in known)
    return {path for value in chain.from_iterable(values) for path in _paths(value)}


def _paths(value: Any) -> Iterator[str]:
    """Yield the path of every artifact in a JSON value, for a folder that of anything in it."""
    if isinstance(value, dict):
        if {"sha256", "path"} <= value.keys():
            yield value["path"]
        else:
            for part in value.values():
                yield from _paths(part)
    elif isinstance(value, str) and (match := IN_STORE.fullmatch(value)):
        yield match[1] + (match[2] or "/*")
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)
