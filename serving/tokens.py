"""The tokens of clients and what each may do, in a file that may change while the server runs."""

import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.errors import ConfigError
from serving.errors import NotAllowed, NoToken

log = logging.getLogger("gauntlet.serving")

CLIENT = re.compile(r"client:([\w.-]{1,60})")
RIGHTS = ("infer", "feedback", "operate", "metrics")
"""To ask a model, to send labels, to load and unload models, to read metrics."""
FIX = "Fix: make one with: openssl rand -hex 32"
_NEEDED = (
    (re.compile(r"/metrics"), "metrics"),
    (re.compile(r"/v2/repository/models/[^/]+/(load|unload)"), "operate"),
    (re.compile(r"/v2/models/[^/]+/feedback"), "feedback"),
)


@dataclass(frozen=True)
class Holder:
    """Who has a token: their rights, and the name of the client, without which they may label anybody's requests."""

    rights: tuple[str, ...]
    client: str = ""


class Tokens:
    """What a request with a header `Authorization: Bearer TOKEN` may do.

    Each line of the file is a token, alone or with its rights and `client:NAME` behind it; a token without rights has
    all. `#` begins a comment.
    """

    def __init__(self, text: str, where: str, path: Path | None = None) -> None:
        self._path, self._where = path, where
        self._holders = parse(text, where)
        self._state = _state(path)
        self.own = secrets.token_hex(32)
        """A token with all rights, for this process alone."""

    @classmethod
    def read(cls, path: Path) -> "Tokens":
        """Return those of a file; `ConfigError` names the line that is none."""
        return cls(path.read_text(errors="replace"), f"--token-file {path}", path)

    def require_right(self, authorization: str, method: str, path: str) -> str:
        """Return the client; `NoToken` without a token of the file, `NotAllowed` where the token lacks the right."""
        self._refresh()
        owner: Holder | None = None
        presented = authorization.encode("utf-8", "replace")
        for token, holder in {self.own: Holder(RIGHTS), **self._holders}.items():  # all, so that the time tells nothing
            if hmac.compare_digest(presented, f"Bearer {token}".encode()):
                owner = holder
        if owner is None:
            raise NoToken("the header 'Authorization: Bearer TOKEN' is missing or has another token")
        right = needed(method, path)
        if right is not None and right not in owner.rights:
            has = f"this token has the rights {', '.join(owner.rights)}"
            raise NotAllowed(f"{has}; {method} {path[:128]} needs {right}")
        return owner.client

    def _refresh(self) -> None:
        """Read the file again if it has changed; one that cannot be read leaves the tokens as they are."""
        if self._path is None or (state := _state(self._path)) == self._state:
            return
        self._state = state
        try:
            self._holders = parse(self._path.read_text(errors="replace"), self._where)
            log.info("tokens read again", extra={"tokens": len(self._holders)})
        except (OSError, ConfigError) as error:
            log.warning("the tokens stay as they were", extra={"error": str(error)})


def parse(text: str, where: str) -> Mapping[str, Holder]:
    """Return who has each token; `ConfigError` for a line that is none, and for no token at all."""
    holders = dict[str, Holder]()
    for number, line in enumerate(text.splitlines(), 1):
        token, *words = line.partition("#")[0].replace(",", " ").split() or [""]
        if not token:
            continue
        if len(token) < 16 or not token.isascii() or not token.isprintable():
            raise ConfigError(f"{where}, line {number}: a token has at least 16 printable ASCII characters. {FIX}")
        clients = [match[1] for word in words if (match := CLIENT.fullmatch(word))]
        rights = tuple(word for word in words if not CLIENT.fullmatch(word))
        if unknown := [word for word in rights if word not in RIGHTS]:
            allowed = f"{', '.join(RIGHTS)}, and client:NAME"
            raise ConfigError(f"{where}, line {number}: {unknown[0]!r} is no right; allowed are {allowed}")
        if len(clients) > 1:
            raise ConfigError(f"{where}, line {number}: a token is one client's; it names {', '.join(clients)}")
        holders[token] = Holder(rights or RIGHTS, *clients)
    if not holders:
        raise ConfigError(f"{where}: it has no token. {FIX}")
    return holders


def needed(method: str, path: str) -> str | None:
    """Return the right that a request needs; None where any token will do: metadata, statistics, pages."""
    right = next((right for pattern, right in _NEEDED if pattern.match(path)), None)  # routes allow a line feed behind
    return right or (None if method in ("GET", "HEAD") or path == "/v2/repository/index" else "infer")


def _state(path: Path | None) -> tuple[int, ...]:
    """Return what changes with a file; () while it is not there."""
    try:
        status = path.stat() if path else None
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status else ()
