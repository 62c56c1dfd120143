"""The promotion ledger of one model: one JSON object a line, each with the SHA-256 of the line before it.

A change of the registry is written twice. The *intent* (`promote`, `rollback`) is on disk before the registry is
touched, and says how its aliases shall stand; `commit` or `undo` follows when they do. An intent without either was
interrupted. The chain shows a changed, removed or inserted line. The registry has every line and the digest of the last
one; the file in a home is a copy, so that homes share one history.
"""

import hashlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError

from gauntlet.core.artifact import fsync
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts

Alias = Literal["champion", "challenger", "previous"]
Role = Literal["champion", "challenger"]
Aliases = dict[Alias, str]
"""Where the aliases stand: the digest of a bundle by alias; an alias that points to nothing is left out."""

ALIASES: tuple[Alias, ...] = get_args(Alias)
FIRST_PARENT = "0" * 64
INTENTS = ("promote", "rollback", "canary")
CLOSING = ("commit", "undo")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Entry(Frozen):
    """One line of the ledger."""

    schema_version: Literal[1] = 1
    number: int = Field(ge=1, description="of the line, from 1")
    parent: str = Field(description="SHA-256 of the line before; zeros in the first line")
    time: str = Field(description="ISO 8601, UTC")
    op: Literal["promote", "rollback", "canary", "refuse", "ask", "upgrade", "commit", "undo"]
    by: str = Field(description="user@host")
    why: str = Field("", description="the reason that a person gave, or why an intent was undone")
    cause: str = Field("", description="what started it, where no person did, for example a retraining")
    retraining: str = Field("", description="id of the retraining that asked for it")
    registry: str = Field("", description="address of the MLflow server; empty for the store of the home")
    role: Role | None = Field(None, description="the alias that was asked for")
    digest: str | None = Field(None, description="of the bundle that the alias is to point to")
    bundle: str | None = Field(None, description="where the bundle lay")
    run_id: str | None = None
    candidate: str | None = Field(None, description="the winner of that run")
    before: Aliases = Field(default_factory=dict, description="the registry's aliases before")
    after: Aliases = Field(default_factory=dict, description="and as this entry wants them, all of them")
    runtime: str = Field("", description="of an upgrade: the runtimes that were compared")
    share: float | None = Field(None, description="of the requests that a canary answers from now on; 0 ends it")
    gates: tuple[Check, ...] = Field((), description="the checks of the run's winner")
    checks: tuple[Check, ...] = Field((), description="the checks of the promotion itself")
    replay: ReplayFacts | None = Field(None, description="against the champion of that moment")
    intent: int | None = Field(None, description="number of the line that this one commits or undoes")
    asked: int | None = Field(
        None, description="number of the line with the request for approval that this one answers"
    )
    versions: dict[str, str] = Field(default_factory=dict, description="digest -> version in the registry")
    seconds: Number | None = Field(None, description="from the intent to the commit")

    @property
    def replaced(self) -> str | None:
        """Digest of the bundle that the alias pointed to before."""
        return self.before.get(self.role or "champion")

    @property
    def proves_harm(self) -> bool:
        """Whether it is a rollback, or the end of a canary, for which there was proof."""
        return any(check.name.startswith("watch.") and not check.passed for check in self.checks)


class LedgerBroken(GateFailed):
    """A line of the ledger is not what was written."""


class Ledger:
    """The file. Whoever writes holds the model's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, root: Path, model: str) -> Self:
        """Return the ledger of a registered model in the home with this root; nothing can replace the file."""
        return cls(root / "ledgers" / f"{model}.jsonl")

    def lines(self) -> list[bytes]:
        """Return the complete lines; what a kill cut short has no newline and is left out."""
        content = self.path.read_bytes() if self.path.exists() else b""
        return content[: content.rfind(b"\n") + 1].splitlines()

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first.

        Raises:
            LedgerBroken: when the chain is broken; the message names the line.
        """
        entries, problem = self.read()
        if problem:
            raise LedgerBroken(problem)
        return entries

    def read(self) -> tuple[list[Entry], str | None]:
        """Return the entries up to the first broken line, and what is wrong with that, if there is one."""
        entries, parent = list[Entry](), FIRST_PARENT
        for number, line in enumerate(self.lines(), 1):
            place, fix = f"{self.path}, line {number}", "Fix: restore the file from a backup"
            try:
                entry = Entry.model_validate_json(line)
            except ValidationError as error:
                return entries, f"{place}: not an entry of a ledger ({error.errors()[0]['msg']}). {fix}"
            if (entry.number, entry.parent) != (number, parent):
                return entries, f"{place}: it does not follow from the lines before: one was changed or removed. {fix}"
            entries.append(entry)
            parent = digest_of(line)
        return entries, None

    @property
    def head(self) -> str | None:
        """The digest of the last line; None where there is none."""
        return digest_of(lines[-1]) if (lines := self.lines()) else None

    def next_line(self, op: str, **fields: Any) -> tuple[Entry, bytes]:
        """Return the entry that is to follow, and its line, without writing it."""
        entry = Entry.model_validate(
            {
                "schema_version": 1,
                "number": len(self.lines()) + 1,
                "parent": self.head or FIRST_PARENT,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "op": op,
                **fields,
            }
        )
        return entry, entry.model_dump_json(exclude_unset=True).encode()

    def write(self, line: bytes) -> None:
        """Append a line and flush it to disk; what a kill left of an incomplete one is removed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.truncate(sum(len(each) + 1 for each in self.lines()))
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fsync(self.path.parent)


def digest_of(line: bytes) -> str:
    """Return the SHA-256 of a line without its newline."""
    return hashlib.sha256(line).hexdigest()


def pending(entries: list[Entry]) -> Entry | None:
    """Return the intent that was interrupted, if there is one; no intent follows it."""
    closed = {entry.intent for entry in entries if entry.op in CLOSING}
    return next((e for e in entries if e.op in INTENTS and e.number not in closed), None)


def registry_address(entries: list[Entry]) -> str | None:
    """Return the address of the model's registry, empty for the store of the home; None for an empty ledger."""
    return next((entry.registry for entry in reversed(entries) if entry.op not in CLOSING), None)


def last_committed(entries: list[Entry]) -> Entry | None:
    """Return the newest intent that was committed; the registry's aliases stand as its `after` says."""
    committed = {entry.intent for entry in entries if entry.op == "commit"}
    return next((e for e in reversed(entries) if e.number in committed), None)


def last_champion_change(entries: list[Entry]) -> Entry | None:
    """Return the newest intent that was committed and let `champion` point to another bundle."""
    committed = {entry.intent for entry in entries if entry.op == "commit"}
    changes = (e for e in reversed(entries) if e.number in committed)
    return next((e for e in changes if e.before.get("champion") != e.after.get("champion")), None)


def awaiting_approval(entries: list[Entry]) -> Entry | None:
    """Return the newest request for approval, unless it was answered."""
    asked = next((entry for entry in reversed(entries) if entry.op == "ask"), None)
    return None if asked is None or any(entry.asked == asked.number for entry in entries) else asked


def proven_harm(entries: list[Entry], digest: str) -> Entry | None:
    """Return the last committed rollback, or end of a canary, of a bundle for proven harm, if there is one."""
    committed = {entry.intent for entry in entries if entry.op == "commit"}
    ends = (e for e in reversed(entries) if e.number in committed and e.proves_harm)
    return next((e for e in ends if digest == (e.digest if e.op == "canary" else e.before.get("champion"))), None)


def running_canary(entries: list[Entry]) -> list[Entry]:
    """Return the steps of the canary that runs, from its first; empty where none does: any other change ends it."""
    committed = {entry.intent for entry in entries if entry.op == "commit"}
    steps = list[Entry]()
    for entry in (e for e in entries if e.number in committed):
        steps = [*steps, entry] if entry.op == "canary" and entry.share else []
    return steps


def checked_name(name: str) -> str:
    """Return a model's name; `ConfigError` when the registry, or the ledger's file, cannot have it."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"name {name!r} is not allowed: letters, digits, '.', '_' and '-', a letter or digit first")
    return name
