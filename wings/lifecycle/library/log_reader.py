"""Reads the request log in a folder, also while a server writes it."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.request_log.log_format import EMBEDDED, STATISTICS, log_files, unpack

Parsed = TypeVar("Parsed")
REQUESTS = """
SELECT id, request_id, time, milliseconds, outputs, inputs, statistics FROM request
WHERE version = :version AND id > :row AND failure IS NULL ORDER BY id
"""
OUTCOMES = """
SELECT id, time, milliseconds, failure FROM request WHERE version = :version AND id > :row ORDER BY id
"""
FEEDBACK = "SELECT * FROM feedback WHERE id > :row ORDER BY id"


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
    """`gauntlet.request_log.input_statistics`, where the log keeps these, shape (n, k)."""
    embedding: Array | None = None
    """`wings.lifecycle.library.monitoring.embedding_output`, where the log keeps it, shape (n, k)."""


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
    labels: tuple[int | str, ...]
    """By name, or by index."""
    time: float = 0.0
    """When they came, in seconds since 1970; 0 where an older server did not log it."""


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
        (row,) = next(_select(path, f"SELECT IFNULL(MAX(id), 0) FROM {table}"), (0,))
        return (number, int(row))

    def requests(self, version: str, after: tuple[int, int] = (0, 0)) -> Iterator[LoggedRequest]:
        """Yield the requests that a version has outputs for, in their order, behind a place.

        Raises:
            StageError: when a file cannot be read.
        """
        for number, row in self._rows(REQUESTS, version, after):
            key, request_id, time, milliseconds, *packed = row
            outputs, inputs, few = (self._parsed(unpack, value, number, key) for value in packed)
            few = few or {}
            kept = (few.get(STATISTICS), few.get(EMBEDDED))
            yield LoggedRequest((number, key), request_id, time, milliseconds, outputs or {}, inputs, *kept)

    def outcomes(self, version: str, after: tuple[int, int] = (0, 0)) -> Iterator[Outcome]:
        """Yield what became of all requests to a version, in their order, behind a place."""
        for number, (key, *fields) in self._rows(OUTCOMES, version, after):
            yield Outcome((number, key), *fields)

    def feedback(self, after: tuple[int, int] = (0, 0)) -> Iterator[Feedback]:
        """Yield labels, of requests to any version, in the order in which they came, behind a place."""
        for number, (key, request_id, labels, *time) in self._rows(FEEDBACK, "", after):
            classes = self._parsed(lambda text: tuple(json.loads(text)), labels, number, key)
            yield Feedback((number, key), request_id, classes or (), *time)

    def inputs(self, place: tuple[int, int]) -> NamedArrays | None:
        """Return the inputs of one request; None where the log does not keep them, or no longer."""
        path = dict(log_files(self.folder)).get(place[0])
        if path is None:
            return None
        row = next(_select(path, "SELECT inputs FROM request WHERE id = :row", row=place[1]), None)
        return self._parsed(unpack, row[0], *place) if row else None

    def _parsed(self, parse: Callable[[Any], Parsed], value: object, number: int, row: int) -> Parsed | None:
        """Return a value of a row, None for NULL; `StageError` where it is not what the server wrote."""
        try:
            return None if value is None else parse(value)
        except (ValueError, TypeError) as error:
            path = dict(log_files(self.folder)).get(number)
            raise StageError(f"{path}: row {row} is damaged ({one_line(error)}). Fix: move the file away") from error

    def _rows(self, query: str, version: str, after: tuple[int, int]) -> Iterator[tuple[int, Any]]:
        for number, path in log_files(self.folder):
            if number >= after[0]:
                for row in _select(path, query, version=version, row=after[1] if number == after[0] else 0):
                    yield number, row


def _select(path: Path, query: str, **values: object) -> Iterator[Any]:
    """Yield rows of a file; none where the server has removed it meanwhile."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as database:
            yield from database.execute(query, values)
    except sqlite3.Error as error:
        if path.exists():
            fix = "let this user read it, or move it away if it is damaged"
            raise StageError(f"{path}: it cannot be read: {error}. Fix: {fix}") from error


def class_numbers(labels: Sequence[int | str], names: Sequence[str]) -> tuple[int, ...]:
    """Return the index of each label for a version with these classes; -1 for an unknown name, and below 0."""
    numbers = {name: number for number, name in enumerate(names)}
    return tuple(numbers.get(label, -1) if isinstance(label, str) else max(label, -1) for label in labels)
