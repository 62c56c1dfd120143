"""The request log of a server: numbered SQLite files, read as NumPy arrays.

The server fills the last file, and removes the first ones where the log would become too large. SQLite keeps a file
whole when its writer is killed, and a reader sees what was written so far.
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, StageError

SCHEMA = """
CREATE TABLE request (
  id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, time REAL NOT NULL, version TEXT NOT NULL,
  milliseconds REAL NOT NULL, failure TEXT, outputs BLOB, inputs BLOB, statistics BLOB);
CREATE TABLE feedback (id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, labels TEXT NOT NULL);
"""
"""Tensors are packed by `pack`; `version` is the beginning of the bundle's digest, `labels` a JSON list of classes.

A request has outputs, or the reason of its failure.
"""
FAILURES = ("error", "model")
"""Reasons of failures that are logged: a fault of the service, and inputs that the runtime cannot run the model on.

Requests that are malformed, canceled or refused under load say nothing about the model.
"""
STATISTICS, EMBEDDED = "statistics", "embedding"
"""What the column `statistics` has, as far as the log keeps it."""
PREFIX, SUFFIX = "requests-", ".sqlite"
VERSION_DIGITS = 12
REQUESTS = """
SELECT id, request_id, time, milliseconds, outputs, inputs, statistics FROM request
WHERE version = :version AND id > :row AND failure IS NULL ORDER BY id
"""
OUTCOMES = """
SELECT id, time, milliseconds, failure FROM request WHERE version = :version AND id > :row ORDER BY id
"""
FEEDBACK = "SELECT id, request_id, labels FROM feedback WHERE id > :row ORDER BY id"


@dataclass(frozen=True)
class LoggedRequest:
    """A request with outputs; `place` is its file and its row there."""

    place: tuple[int, int]
    request_id: str
    time: float
    """Seconds since 1970."""
    milliseconds: float
    """From arrival to outputs."""
    outputs: NamedArrays
    inputs: NamedArrays | None
    """As the model took them, where the log keeps them."""
    statistics: Array | None
    """`gauntlet.monitoring.features.input_statistics`, where the log keeps these, shape (n, k)."""
    embedding: Array | None = None
    """`gauntlet.onnx_model.embedding_output`, where the log keeps it, shape (n, k)."""


@dataclass(frozen=True)
class Outcome:
    """What became of a request, with outputs or without."""

    place: tuple[int, int]
    time: float
    """Seconds since 1970."""
    milliseconds: float
    failure: str | None
    """The reason, as in the server's metrics; None for a request with outputs."""


@dataclass(frozen=True)
class Feedback:
    """The right classes of a request's samples, which came later."""

    place: tuple[int, int]
    request_id: str
    labels: tuple[int, ...]


@dataclass(frozen=True)
class RequestLogReader:
    """Reads the log in a folder, also while a server writes it."""

    folder: Path

    def require(self) -> None:
        """Raise `ConfigError` unless the folder has a log."""
        if not log_files(self.folder):
            raise ConfigError(
                f"--log {self.folder}: no request log in it. Fix: name the folder that the server was started with: "
                "gauntlet serve BUNDLE --request-log FOLDER"
            )

    def end(self, table: Literal["request", "feedback"]) -> tuple[int, int]:
        """Return a place behind everything that is in a table now."""
        files = log_files(self.folder)
        if not files:
            return (0, 0)
        number, path = files[-1]
        with closing(self._connected(path)) as database:
            (row,) = database.execute(f"SELECT IFNULL(MAX(id), 0) FROM {table}").fetchone()
        return (number, int(row))

    def requests(self, version: str, after: tuple[int, int] = (0, 0)) -> Iterator[LoggedRequest]:
        """Yield the requests that a version has outputs for, in their order, behind a place.

        Raises:
            StageError: when a file is damaged.
        """
        for number, row in self._rows(REQUESTS, version, after):
            key, request_id, time, milliseconds, outputs, inputs, statistics = row
            kept = {} if statistics is None else unpack(statistics)
            given = None if inputs is None else unpack(inputs)
            few = (kept.get(STATISTICS), kept.get(EMBEDDED))
            yield LoggedRequest((number, key), request_id, time, milliseconds, unpack(outputs), given, *few)

    def outcomes(self, version: str, after: tuple[int, int] = (0, 0)) -> Iterator[Outcome]:
        """Yield what became of all requests to a version, in their order, behind a place."""
        for number, (key, *fields) in self._rows(OUTCOMES, version, after):
            yield Outcome((number, key), *fields)

    def feedback(self, after: tuple[int, int] = (0, 0)) -> Iterator[Feedback]:
        """Yield labels, of requests to any version, in the order in which they came, behind a place."""
        for number, (key, request_id, labels) in self._rows(FEEDBACK, "", after):
            yield Feedback((number, key), request_id, tuple(json.loads(labels)))

    def inputs(self, place: tuple[int, int]) -> NamedArrays | None:
        """Return the inputs of one request; None where the log does not keep them, or no longer."""
        path = dict(log_files(self.folder)).get(place[0])
        if path is None:
            return None
        with closing(self._connected(path)) as database:
            found = database.execute("SELECT inputs FROM request WHERE id = ?", (place[1],)).fetchone()
        return unpack(found[0]) if found and found[0] is not None else None

    def _rows(self, query: str, version: str, after: tuple[int, int]) -> Iterator[tuple[int, Any]]:
        for number, path in log_files(self.folder):
            if number < after[0]:
                continue
            try:
                with closing(self._connected(path)) as database:
                    values = {"version": version, "row": after[1] if number == after[0] else 0}
                    for row in database.execute(query, values):
                        yield number, row
            except sqlite3.Error as error:
                if path.exists():  # the server may have removed it meanwhile
                    raise StageError(f"{path}: it cannot be read: {error}. Fix: remove this file") from error

    @staticmethod
    def _connected(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)


def is_in_share(request_id: str, share: float, purpose: bytes = b"") -> bool:
    """Return whether a request is among a share of all, by its id alone: the same everywhere, for one purpose."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest) < share * 2**64


def log_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a log with their numbers, the oldest first."""
    found = ((path.name.removeprefix(PREFIX).removesuffix(SUFFIX), path) for path in folder.glob(f"{PREFIX}*{SUFFIX}"))
    return sorted((int(number), path) for number, path in found if number.isdecimal())


def pack(arrays: NamedArrays) -> bytes:
    """Return arrays as bytes: a line of JSON with names, types and shapes, then the values."""
    plain = [array.astype(np.str_) if array.dtype == object else array for array in arrays.values()]
    specs = tuple((name, array.dtype.str, array.shape) for name, array in zip(arrays, plain, strict=True))
    return b"".join([_head(specs), *(array.tobytes() for array in plain)])


@lru_cache(256)
def _head(specs: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    return json.dumps(specs).encode() + b"\n"


def unpack(packed: bytes) -> NamedArrays:
    """Return the arrays that `pack` wrote."""
    place = packed.index(b"\n") + 1
    arrays: NamedArrays = {}
    for name, kind, shape in json.loads(packed[:place]):
        dtype = np.dtype(kind)
        arrays[name] = np.frombuffer(packed, dtype, math.prod(shape), place).reshape(shape)
        place += arrays[name].nbytes
    return arrays
