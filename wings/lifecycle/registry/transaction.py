"""One change of a model's aliases at a time: ledger first, then the registry, then the ledger again.

What a kill interrupts is finished by the next command on the model, or undone where its bundle no longer exists.
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

from flows.record.home import Home
from flows.record.locks import locked
from flows.servers.local_servers import runs_mlflow
from gauntlet.core.errors import ConfigError, GateFailed, StageError, without_password
from wings.lifecycle.library.promotion.ledger import (
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
    """The registry and the ledger of one model, held by this process alone; they agree."""

    home: Home
    registry: ModelRegistry
    ledger: Ledger
    state: Aliases
    """The registry's aliases."""

    def note(self, op: Literal["refuse", "ask", "upgrade"], **fields: Any) -> Entry:
        """Write down that nothing is changed, and why."""
        entry = self.ledger.append(op, **self.signed(), before=self.state, after=self.state, **fields)
        _anchor(self.registry, self.ledger)
        return entry

    def change(self, op: str, after: Aliases, **fields: Any) -> Entry:
        """Let the aliases stand as `after` says; return the entry that says so, which is committed.

        Raises:
            AccessError: when this account may not change the model; nobody's later command finishes the change.
            GateFailed: when another home changed the model at the same time.
        """
        intent = self.ledger.append(op, **self.signed(), before=self.state, after=after, **fields)
        try:
            _apply(self.home, self.registry, self.ledger, intent)
        except GateFailed as error:
            self.ledger.append("undo", by=intent.by, intent=intent.number, why=str(error))
            raise
        except AccessError as error:
            if self.registry.state() == self.state:
                self.ledger.append("undo", by=intent.by, intent=intent.number, why=str(error))
                _anchor(self.registry, self.ledger)
            raise
        return intent

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
    """Hold a model for this process, finish what was interrupted, and check that registry and ledger agree.

    Raises:
        GateFailed: when the ledger is damaged, or does not have what the registry was last changed by.
        StageError: when the registry cannot be reached.
    """
    ledger = Ledger.of(home.root, registry.name)
    waiting = f"{registry.name}: waiting for another command on this model"
    with locked(home.locks / f"promotion-{registry.name}", on_wait=lambda: log.info("%s", waiting)):
        _same_registry(home, registry, ledger)
        recover(home, registry, ledger)
        _same_head(registry, ledger)
        yield Transaction(home, registry, ledger, registry.state())


def recover(home: Home, registry: ModelRegistry, ledger: Ledger) -> None:
    """Finish an interrupted change, or undo it where its bundle no longer exists.

    Where the registry was changed by another home since, the change is undone in the ledger, and the registry stays.
    """
    intent = pending(ledger.entries())
    if intent is None:
        return
    if problem := head_problem(registry, ledger) or moved_since(intent, registry.state()):
        ledger.append("undo", by=intent.by, intent=intent.number, why=problem)
        log.warning("%s: gave up the %s of line %d: %s", registry.name, intent.op, intent.number, problem)
        return
    try:
        _apply(home, registry, ledger, intent)
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
    ledger = Ledger.of(home.root, registry.name)
    with locked(home.locks / f"promotion-{registry.name}"):
        _same_registry(home, registry, ledger)
        if (intent := pending(ledger.entries())) is None:
            raise ConfigError(f"{registry.name}: nothing is interrupted. See: gauntlet history {registry.name}")
        if problem := head_problem(registry, ledger) or moved_since(intent, registry.state()):
            raise GateFailed(f"{problem}. The next promotion gives up line {intent.number} by itself")
        _undo(registry, ledger, intent, why or "abandoned")
    return intent


def _undo(registry: ModelRegistry, ledger: Ledger, intent: Entry, why: str) -> None:
    versions = {digest: version for digest in intent.before.values() if (version := registry.find(digest))}
    registry.point(intent.before, versions)
    registry.set_canary(_canary_of(last_committed(ledger.entries())))
    ledger.append("undo", by=intent.by, intent=intent.number, why=why)
    _anchor(registry, ledger)


def _apply(home: Home, registry: ModelRegistry, ledger: Ledger, intent: Entry) -> None:
    """Bring the registry to where an intent wants it, from wherever it stands, and commit.

    Raises:
        GateFailed: when the registry was changed by another home since; nothing is changed then.
    """
    registry.claim(ledger.digest(intent.number))
    _same_head(registry, ledger)
    versions = {}
    for digest in sorted(set(intent.after.values())):
        versions[digest] = registry.find(digest) or _register(home, registry, intent, digest)
    registry.point(intent.after, versions)
    registry.set_canary(_canary_of(intent))
    registry.set_head(ledger.digest(intent.number))
    seconds = (datetime.now(UTC) - datetime.fromisoformat(intent.time)).total_seconds()
    ledger.append("commit", by=intent.by, intent=intent.number, versions=versions, seconds=seconds)


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


def _anchor(registry: ModelRegistry, ledger: Ledger) -> None:
    """Let the registry have the digest of the ledger's last line, so that it cannot be removed unseen.

    A head that is another home's stays.
    """
    try:
        if registry.head() in [digest_of(line) for line in ledger.lines()]:
            registry.set_head(ledger.digest(len(ledger.lines())))
    except (AccessError, StageError) as error:  # what the line says holds all the same
        log.warning("%s: the last line of %s is not anchored: %s", registry.name, ledger.path, error)


def _register(home: Home, registry: ModelRegistry, intent: Entry, digest: str) -> str:
    origin = find_origin(home, intent.bundle or "")
    if digest != intent.digest or origin.opened.digest != digest:
        raise ConfigError(f"{intent.bundle}: not the bundle {digest[:12]} that line {intent.number} promoted")
    return registry.register(origin)


def _same_registry(home: Home, registry: ModelRegistry, ledger: Ledger) -> None:
    """Refuse to go on with a model on another server than the ledger names."""
    known = registry_address(ledger.entries())
    uri = without_password(registry.uri)
    if known is not None and uri != (known or home.mlflow_uri):
        raise ConfigError(
            f"{registry.name} is registered on {known or home.mlflow_uri}, but this run was recorded on {uri}. "
            "Fix: promote it under another name with --name, or in another home"
        )


def _same_head(registry: ModelRegistry, ledger: Ledger) -> None:
    """Refuse to go on where the registry was changed by an entry that this ledger does not have."""
    if problem := head_problem(registry, ledger):
        raise GateFailed(problem)


def head_problem(registry: ModelRegistry, ledger: Ledger) -> str | None:
    """Return how the ledger lags behind the registry, or None.

    The registry has the digest of the last committed change, or of a line after it.
    """
    committed, head = last_committed(ledger.entries()), registry.head()
    if committed is None and head is None:
        return None
    if head in [digest_of(line) for line in ledger.lines()[committed.number - 1 if committed else 0 :]]:
        return None
    what = f"entry {head[:12]}" if head else "no entry"
    return (
        f"{ledger.path}: the registry was last changed by {what}, which is not this ledger's last one: lines are "
        "missing at its end, or the model was promoted from another home. Fix: restore the file from a backup, or copy "
        "it from that home; to begin a new chain, remove the tag gauntlet.ledger of the registered model"
    )
