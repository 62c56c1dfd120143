"""Logs as JSON, one object a line: what happened and how long it took, never what was sent."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record's time, level, message and extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in STANDARD and value is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_as_json(level: str, stream: IO[str] | None = None) -> None:
    """Send all logs of this process to standard error, or to another stream."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)  # `Gate` logs requests
