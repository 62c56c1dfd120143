"""Writes the request log in a thread of its own: a slow or full disk costs entries, never a request.

A request only joins a bounded queue. The thread writes what has queued, a few times a second, into the last of the
log's SQLite files (`wings.lifecycle.library.log_reader`), and removes the first ones before the log is too large.
"""

import fcntl
import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.request_log.log_format import EMBEDDED, PREFIX, STATISTICS, SUFFIX, is_in_share, log_files, pack
from serving.request_log.log_file import LogFile, Row, parts_of, size_of
from serving.request_log.logged_statistics import LoggedInputs, statistics_of

log = logging.getLogger("gauntlet.serving")

FLUSH_S = 0.25
FILES = 8
"""The log is so many files, of which the first is removed as a whole."""
QUEUE_BYTES = 64_000_000
ENTRY_BYTES = 1_000
"""What an entry takes besides its tensors, at most."""
WARN_S = 60.0
CLOSE_S = 10.0


class RequestLogConfig(Frozen):
    """What is logged, and where."""

    folder: Path
    share: float = Field(1.0, gt=0, le=1, description="of the requests, chosen by their ids")
    inputs: Literal["none", "statistics", "embeddings", "all"] = Field(
        "statistics",
        description="what is kept of the inputs: nothing, a few numbers of each, these and the network's penultimate "
        "outputs, or all values and the penultimate outputs",
    )
    max_mb: float = Field(1000, ge=16, description="size of the log; its oldest requests are removed")

    @property
    def keeps_embeddings(self) -> bool:
        """Whether the network's penultimate outputs are kept."""
        return self.inputs in ("embeddings", "all")

    @property
    def file_bytes(self) -> int:
        """Size above which the next file is begun."""
        return int(self.max_mb * 1e6 / FILES)


@dataclass(frozen=True, slots=True)
class _Request:
    id: str
    time: float
    version: str
    seconds: float
    outputs: NamedArrays
    inputs: LoggedInputs | None
    embedding: Array | None
    size: int


@dataclass(frozen=True, slots=True)
class _Failure:
    id: str
    time: float
    version: str
    seconds: float
    reason: str
    size: int = ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class _Feedback:
    id: str
    labels: tuple[int | str, ...]
    time: float
    size: int = ENTRY_BYTES


_Entry = _Request | _Failure | _Feedback


class RequestLog:
    """The log of one server; `close` writes what is queued."""

    def __init__(self, config: RequestLogConfig, count: Callable[[str, int], None] = lambda outcome, entries: None):
        """Take the folder for this server; `count` is called with `written` or `lost` and a number of entries.

        Raises:
            ConfigError: when the folder cannot be used, or another server has it.
        """
        self.config, self._count = config, count
        self._lock = _take(config.folder)
        self._queue: deque[_Entry] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._file: LogFile | None = None
        self._warned = -WARN_S
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self._thread.start()

    def samples(self, request_id: str) -> bool:
        """Return whether the request with this id is logged: the same on every server with the same share."""
        return self.config.share == 1 or is_in_share(request_id, self.config.share, "log")

    def add(
        self,
        request_id: str,
        version: str,
        signature: Signature,
        inputs: NamedArrays,
        outputs: NamedArrays,
        seconds: float,
        embedding: Array | None = None,
    ) -> None:
        """Log a request with its outputs, if it is sampled and there is room in the queue."""
        if not self.samples(request_id):
            return
        kept = None if self.config.inputs == "none" else LoggedInputs(version, signature, inputs)
        size = ENTRY_BYTES + _bytes_of(outputs) + (_bytes_of(inputs) if kept is not None else 0)
        size += 0 if embedding is None else embedding.nbytes
        self._put(_Request(request_id, time.time(), version, seconds, outputs, kept, embedding, size))

    def add_failure(self, request_id: str, version: str, reason: str, seconds: float) -> None:
        """Log a request without outputs, if it is sampled and there is room in the queue."""
        if self.samples(request_id):
            self._put(_Failure(request_id, time.time(), version, seconds, reason))

    def add_feedback(self, request_id: str, labels: tuple[int | str, ...]) -> bool:
        """Log labels of a request; return False when there is no room in the queue."""
        return self._put(_Feedback(request_id, labels, time.time()))

    def close(self) -> None:
        """Write what is queued and end the thread; a disk that does not respond is left alone after a while."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._lock.close()

    def _put(self, entry: _Entry) -> bool:
        with self._changed:
            fits = self._bytes + entry.size <= min(QUEUE_BYTES, self.config.file_bytes // 2)
            if fits:
                self._bytes += entry.size
                self._queue.append(entry)
                if len(self._queue) == 1:
                    self._changed.notify()
        if not fits:
            self._lost(1, "the queue is full: the disk is too slow, or the entries are too large")
        return fits

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                self._changed.wait_for(lambda: self._closed, FLUSH_S)  # more may come; one transaction for all
                entries, ended = list(self._queue), self._closed
                self._queue.clear()
            refused = self._write(entries) if entries else ""
            with self._changed:  # there is room before an entry is counted: who waits for the count may add the next
                self._bytes -= sum(entry.size for entry in entries)
            if refused:
                self._lost(len(entries), refused)
            else:
                self._count("written", len(entries))
            if ended:
                break
        if self._file is not None:
            self._file.close()

    def _write(self, entries: list[_Entry]) -> str:
        """Write entries in one transaction; return why none of them could be written, or nothing."""
        try:
            if self._file is None or not self._file.path.exists() or self._file.size > self.config.file_bytes:
                self._begin_file()
            assert self._file is not None
            requests = self._rows([entry for entry in entries if not isinstance(entry, _Feedback)])
            feedback = [(e.id, json.dumps(e.labels), e.time) for e in entries if isinstance(e, _Feedback)]
            self._file.write(requests, feedback)
        except (sqlite3.Error, OSError) as error:
            return f"{self.config.folder}: {error}"
        return ""

    def _rows(self, entries: list[_Request | _Failure]) -> list[Row]:
        rows: dict[int, Array] = {}
        if self.config.inputs in ("statistics", "embeddings"):
            feeds = {i: entry.inputs for i, entry in enumerate(entries) if isinstance(entry, _Request) and entry.inputs}
            rows = statistics_of(feeds)
        return [
            (entry.id, entry.time, entry.version, 1000 * entry.seconds, *self._kept(entry, rows.get(place)))
            for place, entry in enumerate(entries)
        ]

    def _kept(self, entry: _Request | _Failure, statistics: Array | None) -> Row:
        """Return the reason of a failure, the outputs, the inputs, and what is kept of them besides."""
        if isinstance(entry, _Failure):
            return entry.reason, None, None, None
        inputs = pack(entry.inputs.arrays) if entry.inputs and self.config.inputs == "all" else None
        few = {STATISTICS: statistics, EMBEDDED: entry.embedding if self.config.keeps_embeddings else None}
        known = {name: array for name, array in few.items() if array is not None}
        return None, pack(entry.outputs), inputs, pack(known) if known else None

    def _begin_file(self) -> None:
        """Close the file, remove the first ones, and begin the next: two files of room are always left."""
        if self._file is not None:
            self._file.close()
            self._file = None
        files = log_files(self.config.folder)
        total = sum(size_of(path) for _, path in files)
        for _, path in files:
            if total <= (FILES - 2) * self.config.file_bytes:
                break
            total -= size_of(path)
            for part in parts_of(path):
                part.unlink(missing_ok=True)
        now_ms = time.time_ns() // 1_000_000
        number = max(now_ms, files[-1][0] + 1 if files else 0)  # none is used again, whoever removes files
        self._file = LogFile(self.config.folder / f"{PREFIX}{number}{SUFFIX}")

    def _lost(self, entries: int, why: str) -> None:
        """Count entries that are not written, and say why once a minute."""
        self._count("lost", entries)
        now = time.monotonic()
        if now - self._warned >= WARN_S:
            self._warned = now
            log.warning("the request log loses entries", extra={"reason": why})


def _take(folder: Path) -> IO[str]:
    """Lock the folder as long as this process lives, and return the lock."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise ConfigError(f"--request-log {folder}: {error.strerror or error}. Fix: name another folder") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise ConfigError(
            f"--request-log {folder}: another server writes into it. Fix: give each server a folder of its own"
        ) from error
    return lock


def _bytes_of(arrays: NamedArrays) -> int:
    return sum(array.nbytes for array in arrays.values())
