"""The format of the request log: numbered SQLite files, whose tensors are packed NumPy arrays.

The server fills the last file, and removes the first ones where the log would become too large. SQLite keeps a file
whole when its writer is killed, and a reader sees what was written so far.
"""

import hashlib
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from gauntlet.core.arrays import NamedArrays

SCHEMA = """
CREATE TABLE request (
  id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, time REAL NOT NULL, version TEXT NOT NULL,
  milliseconds REAL NOT NULL, failure TEXT, outputs BLOB, inputs BLOB, statistics BLOB);
CREATE TABLE feedback (id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, labels TEXT NOT NULL, time REAL NOT NULL);
"""
"""Tensors are packed by `pack`; `version` is the beginning of the bundle's digest, `labels` a JSON list of classes, by
name or by index as the client gave them: another version may have another order.

A request has outputs, or the reason of its failure.
"""
REFUSED = "model"
FAILURES = ("error", REFUSED)
"""Reasons of failures that are logged: a fault of the service, and inputs that the runtime cannot run the model on.

Requests that are malformed, canceled or refused under load say nothing about the model.
"""
STATISTICS, EMBEDDED = "statistics", "embedding"
"""What the column `statistics` has, as far as the log keeps it."""
EMBEDDING = "gauntlet_embedding"
"""Name of the model's further output that is logged as `EMBEDDED`, shape (n, k)."""
PREFIX, SUFFIX = "requests-", ".sqlite"
VERSION_DIGITS = 12
REFERENCE = "monitoring.npz"
"""In a bundle: what requests are compared with."""


def logged_id(client: str, request_id: str) -> str:
    """Return the id under which a client's request is logged, so that labels of another client do not find it."""
    return f"{client}/{request_id}" if client else request_id


def ids_of(logged: str) -> tuple[str, ...]:
    """Return the ids that labels may name: as it is logged, and, for those of no client, without the client."""
    return tuple(dict.fromkeys((logged, logged.rpartition("/")[2])))


def is_in_share(request_id: str, share: float, purpose: Literal["canary", "log"]) -> bool:
    """Return whether a request is among a share of all, by its id without the client: the same everywhere.

    The shares of two purposes are independent: a log of few requests has both a canary's and its champion's.
    """
    id_bytes, person = ids_of(request_id)[-1].encode(), purpose.encode()
    return int.from_bytes(hashlib.blake2b(id_bytes, digest_size=8, person=person).digest()) < share * 2**64


def log_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a log with their numbers, the oldest first."""
    files = folder.glob(f"{PREFIX}*{SUFFIX}")
    numbered = ((path.name.removeprefix(PREFIX).removesuffix(SUFFIX), path) for path in files)
    return sorted((int(number), path) for number, path in numbered if number.isdecimal())


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
