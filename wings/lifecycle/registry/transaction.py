"""One change of a model's aliases at a time: ledger first, then the registry's aliases, then the ledger again.

What a kill interrupts is finished by the next command on the model, in any home, or undone where its bundle no longer
exists.
"""

import getpass
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.local_servers import runs_mlflow
from gauntlet.core.errors import ConfigError, GateFailed, without_password
from wings.lifecycle.library.promotion.ledger import (
    FIRST_PARENT,
    Aliases,
    Entry,
    Ledger,
    digest_of,
    last_committed,
    pending,
    registry_address,
)
from wings.lifecycle.registry.model_registry import ACCOUNT_VARIABLE, AccessError, ModelRegistry
from wings.lifecycle.registry.origin import find_origin

log = logging.getLogger("gauntlet")


@dataclass(frozen=True)
class Transaction:
    """The registry and the ledger of one model, held by this process alone in this home; they agree."""

    home: Home
    registry: ModelRegistry
    ledger: Ledger
    state: Aliases
    """The registry's aliases."""

    def note(self, op: Literal["refuse", "ask", "upgrade"], **fields: Any) -> Entry:
        """Write down that nothing is changed, and why; what an account may not write is only returned.

        Raises:
            GateFailed: when another home changed the model at the same time.
        """
        if op == "ask":  # another home may answer
            self._register(fields)
        fields = {**self.signed(), "before": self.state, "after": self.state, **fields}
        try:
            with self.registry.alone():
                return _append(self.registry, self.ledger, op, **fields)
        except AccessError as error:
            if op == "ask":
                raise
            log.warning("%s: the ledger does not have this: %s", self.registry.name, error)
            return self.ledger.next_line(op, **fields)[0]

    def change(self, op: str, after: Aliases, **fields: Any) -> Entry:
        """Let the aliases stand as `after` says; return the entry that says so, which is committed.

        Raises:
            AccessError: when this account may not change the model.
            GateFailed: when another home changed the model at the same time.
        """
        self._register(fields)
        with self.registry.alone():
            fields = {**self.signed(), "before": self.state, "after": after, **fields}
            intent = _append(self.registry, self.ledger, op, **fields)
            _apply(self.registry, self.ledger, intent)
        return intent

    def _register(self, fields: dict[str, Any]) -> None:
        """Give the registry the bundle that an entry names, before anything says that it is used."""
        digest, bundle = fields["digest"], fields.get("bundle")
        if bundle is None or self.registry.find(digest):
            return
        origin = find_origin(self.home, bundle)
        if origin.opened.digest != digest:
            raise ConfigError(f"{bundle}: it was changed meanwhile. Fix: promote it again")
        self.registry.create()
        self.registry.register(origin)

    def signed(self) -> dict[str, str]:
        """Return who acts, and on which server."""
        uri = self.registry.uri
        address = "" if uri == self.home.mlflow_uri else without_password(uri)
        person, account = f"{getpass.getuser()}@{socket.gethostname()}", os.environ.get(ACCOUNT_VARIABLE)
        if runs_mlflow(self.home, uri):  # it has one account for all who use the home
            account = None
        return {"by": f"{account} ({person})" if account else person, "registry": address}


@contextmanager
def transaction(home: Home, registry: ModelRegistry) -> Iterator[Transaction]:
    """Hold a model for this process, fetch the ledger's new lines, and finish what was interrupted.

    Raises:
        GateFailed: when this home's copy of the ledger is damaged, or has what the registry's does not.
        StageError: when the registry cannot be reached.
    """
    with _held(home, registry) as ledger:
        recover(registry, ledger)
        yield Transaction(home, registry, ledger, registry.state())


@contextmanager
def _held(home: Home, registry: ModelRegistry) -> Iterator[Ledger]:
    """Yield the ledger, as the registry has it; this process alone has it in this home."""
    ledger = Ledger.of(home.root, registry.name)
    waiting = f"{registry.name}: waiting for another command on this model"
    with locked(home.locks / f"promotion-{registry.name}", on_wait=lambda: log.info("%s", waiting)):
        _same_registry(home, registry, ledger)
        fetch(registry, ledger)
        yield ledger


def fetch(registry: ModelRegistry, ledger: Ledger) -> None:
    """Copy the lines that the registry's ledger has and this home's copy does not; the lock of the model is held.

    Raises:
        GateFailed: when the copy is damaged, or has what the registry's ledger does not.
        StageError: when the registry cannot be reached.
    """
    ledger.entries()
    new, head = list[bytes](), registry.head() or FIRST_PARENT
    known = {digest_of(line) for line in ledger.lines()}
    while head not in known and head != FIRST_PARENT:
        new.append(registry.line(head))
        try:
            head = Entry.model_validate_json(new[-1]).parent
        except ValidationError as error:
            raise GateFailed(
                f"{registry.name}: the ledger's line {head[:12]} in the registry is not an entry of this release "
                f"({error.errors()[0]['msg']}). Fix: use the release of the home that wrote it"
            ) from error
    if head != (ledger.head or FIRST_PARENT):
        raise GateFailed(
            f"{ledger.path}: its last lines are not in the ledger that the registry has. Fix: move the file away, and "
            "the registry's is copied"
        )
    for line in reversed(new):
        ledger.write(line)


def recover(registry: ModelRegistry, ledger: Ledger) -> None:
    """Finish an interrupted change, of any home, or undo it where its bundle no longer exists.

    Where something else moved the aliases since, the change is undone in the ledger, and the registry stays.
    """
    if pending(ledger.entries()) is None:
        return
    with registry.alone():
        fetch(registry, ledger)
        if (intent := pending(ledger.entries())) is None:  # another home was at it
            return
        if problem := moved_since(intent, registry.state()):
            _append(registry, ledger, "undo", by=intent.by, intent=intent.number, why=problem)
            log.warning("%s: gave up the %s of line %d: %s", registry.name, intent.op, intent.number, problem)
            return
        try:
            _apply(registry, ledger, intent)
            log.info("%s: finished the %s of line %d", registry.name, intent.op, intent.number)
        except ConfigError as error:
            _undo(registry, ledger, intent, str(error))
            log.warning("%s: undid the %s of line %d: %s", registry.name, intent.op, intent.number, error)


def abandon(home: Home, registry: ModelRegistry, why: str = "") -> Entry:
    """Undo an interrupted change instead of finishing it; return its intent.

    Raises:
        ConfigError: when nothing is interrupted.
        GateFailed: when the ledger is damaged, or something else has changed the registry since.
        StageError: when the registry cannot be reached.
    """
    with _held(home, registry) as ledger:
        if (intent := pending(ledger.entries())) is None:
            raise ConfigError(f"{registry.name}: nothing is interrupted. See: gauntlet history {registry.name}")
        if problem := moved_since(intent, registry.state()):
            raise GateFailed(f"{problem}. The next promotion gives up line {intent.number} by itself")
        with registry.alone():
            _undo(registry, ledger, intent, why or "abandoned")
    return intent


def _append(registry: ModelRegistry, ledger: Ledger, op: str, /, **fields: Any) -> Entry:
    """Write a line, in the registry first; `GateFailed` where another home has written one since."""
    if registry.head() != ledger.head:
        raise GateFailed(f"{registry.name}: another home changed it at the same time. Fix: run the same command again")
    entry, line = ledger.next_line(op, **fields)
    registry.add_line(line)
    ledger.write(line)
    return entry


def _undo(registry: ModelRegistry, ledger: Ledger, intent: Entry, why: str) -> None:
    versions = {digest: version for digest in intent.before.values() if (version := registry.find(digest))}
    registry.point(intent.before, versions)
    registry.set_canary(_canary_of(last_committed(ledger.entries())))
    _append(registry, ledger, "undo", by=intent.by, intent=intent.number, why=why)


def _apply(registry: ModelRegistry, ledger: Ledger, intent: Entry) -> None:
    """Bring the registry to where an intent wants it, from wherever it stands, and commit."""
    versions = dict[str, str]()
    for digest in sorted(set(intent.after.values())):
        if (version := registry.find(digest)) is None:
            raise ConfigError(f"the registry has no version with the bundle {digest[:12]} any more")
        versions[digest] = version
    registry.point(intent.after, versions)
    registry.set_canary(_canary_of(intent))
    seconds = (datetime.now(UTC) - datetime.fromisoformat(intent.time)).total_seconds()
    _append(registry, ledger, "commit", by=intent.by, intent=intent.number, versions=versions, seconds=seconds)


def _canary_of(entry: Entry | None) -> tuple[str, float] | None:
    """Return the canary that runs after a change: any but a step of a canary ends it."""
    return (entry.digest, entry.share) if entry and entry.op == "canary" and entry.digest and entry.share else None


def moved_since(intent: Entry, state: Aliases) -> str:
    """Return which aliases are neither as an interrupted change saw them nor as it wants them, or nothing."""
    wrong = [
        name
        for name in sorted({*state, *intent.before, *intent.after})
        if state.get(name) not in (intent.before.get(name), intent.after.get(name))
    ]
    return f"something else moved {', '.join(wrong)} meanwhile" if wrong else ""


def _same_registry(home: Home, registry: ModelRegistry, ledger: Ledger) -> None:
    """Refuse to go on with a model on another server than the ledger names."""
    known = registry_address(ledger.entries())
    uri = without_password(registry.uri)
    if known is not None and uri != (known or home.mlflow_uri):
        raise ConfigError(
            f"{registry.name} is registered on {known or home.mlflow_uri}, but this run was recorded on {uri}. "
            "Fix: promote it under another name with --name, or in another home"
        )
