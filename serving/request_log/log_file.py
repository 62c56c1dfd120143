"""One file of the request log, while a server writes it."""

import logging
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from gauntlet.request_log.log_format import SCHEMA

log = logging.getLogger("gauntlet.serving")

PAGES = 250
"""Of the write-ahead log, before SQLite moves them into the file: 1 MB."""
INSERT_REQUEST = """
INSERT INTO request (request_id, time, version, milliseconds, failure, outputs, inputs, statistics)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_FEEDBACK = "INSERT INTO feedback (request_id, labels, time) VALUES (?, ?, ?)"
Row = tuple[object, ...]


class LogFile:
    """A file that is being written; every method may raise `sqlite3.Error` or `OSError`."""

    def __init__(self, path: Path) -> None:
        """Create it; a reader sees it with its tables, or not at all."""
        self.path = path
        incoming = path.with_suffix(".new")
        incoming.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(incoming, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(SCHEMA)
            incoming.rename(path)
        finally:
            for part in parts_of(incoming):
                part.unlink(missing_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute(f"PRAGMA wal_autocheckpoint = {PAGES}")

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return size_of(self.path)

    def write(self, requests: Iterable[Row], feedback: Iterable[Row]) -> None:
        """Write rows in one transaction, or none of them."""
        self._database.execute("BEGIN")
        try:
            self._database.executemany(INSERT_REQUEST, requests)
            self._database.executemany(INSERT_FEEDBACK, feedback)
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """End with a file that needs no write-ahead log to be read."""
        try:
            self._database.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error:  # somebody reads it, or the disk is full: it stays readable with its write-ahead log
            log.debug("the write-ahead log stays", extra={"file": str(self.path)})
        try:
            self._database.close()
        except sqlite3.Error as error:
            log.debug("not closed", extra={"file": str(self.path), "reason": str(error)})


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return the file, and those that SQLite keeps beside it."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def size_of(path: Path) -> int:
    """Return the bytes of a file of the log on the disk."""
    return sum(part.stat().st_size for part in parts_of(path) if part.exists())
