"""Whether a bundle's evidence is about its model: provenance and bill of materials name its files by digest."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PROVENANCE = "provenance/slsa.json"
"""The statement that binds the report to the model and to its golden data."""


def unbound_evidence(folder: Path, digests: Mapping[str, str], bound: tuple[str, ...]) -> Iterator[str]:
    """Yield one line for each document about other files than the bundle's, and for what no document binds.

    `digests` are SHA-256 by the name of a file in the bundle. `PROVENANCE` has to name the files of `bound` that there
    are. Who rewrites all documents is not stopped by this; a signature is.
    """
    names: dict[str, set[str]] = {PROVENANCE: set()}
    for document in digests:
        if not (document == "bom.json" or document.startswith("provenance/")):
            continue
        try:
            described = [*_descriptors(json.loads((folder / document).read_bytes()))]
        except (OSError, ValueError, RecursionError):
            yield f"{document}: it cannot be read, so it is no evidence for the model"
            continue
        names[document] = {name for name, _ in described}
        for name, digest in described:
            if digests.get(name, digest) != digest:
                yield f"{document}: it is about another {name} than the one in the bundle"
    for name in bound:
        if name in digests and name not in names[PROVENANCE]:
            yield f"{name}: {PROVENANCE} does not say that it belongs to this report"


def _descriptors(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and SHA-256 of every file that an in-toto statement or a bill of materials names."""
    match value:
        case {"name": str(name), "digest": {"sha256": str(digest)}}:
            yield name, digest
        case {"bom-ref": str(name), "hashes": [{"content": str(digest)}]}:
            yield name, digest
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _descriptors(part)
