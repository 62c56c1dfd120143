"""What this home has sent to one MLflow server, by digest, so that no content is sent twice."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import without_password

Place = dict[str, str]
"""Where content is on the server: `model_id`, or `run_id`, `folder` and `name`."""


class SentContent:
    """A file of the home with the place of every content on one server.

    The server may have lost it since: whoever links to a place looks first whether it is there.
    """

    def __init__(self, home: Home, uri: str) -> None:
        self.path = home.sent / f"{_short_digest(without_password(uri))}.json"
        self.locks = home.locks

    @contextmanager
    def one_sender(self, content: str) -> Iterator[None]:
        """Keep other processes from sending the same content meanwhile."""
        with locked(self.locks / f"mlflow-{self.path.stem}-{_short_digest(content)}"):
            yield

    def place(self, content: str) -> Place | None:
        """Return where the content was sent to, if it was."""
        return self._places().get(content)

    def add(self, content: str, **place: str) -> None:
        """Note where the content is now."""
        with locked(self.locks / f"mlflow-{self.path.stem}"):
            write_atomically(self.path, json.dumps(self._places() | {content: place}, indent=1))

    def _places(self) -> dict[str, Place]:
        known: dict[str, Place] = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        return known


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
