"""A model's history: its ledger, checked against itself and against the registry."""

from dataclasses import dataclass, field
from typing import Any

from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.errors import ConfigError, GateFailed, StageError
from wings.lifecycle.library.promotion.ledger import (
    CLOSING,
    Aliases,
    Entry,
    Ledger,
    awaiting_approval,
    checked_name,
    last_committed,
    pending,
)
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.transaction import fetch, moved_since

UNFINISHED = "interrupted"


@dataclass(frozen=True)
class History:
    """The entries, and whether they can be trusted."""

    name: str
    entries: list[Entry]
    problem: str | None = None
    """What is wrong: a broken chain, or a registry that says something else."""
    note: str | None = None
    """Why the registry could not be asked."""
    aliases: Aliases = field(default_factory=dict)
    """As the registry has them."""

    def outcome(self, entry: Entry) -> str:
        """Return what became of an intent: `done`, `undone` or `interrupted`; `refused` for a refusal."""
        if entry.op == "refuse":
            return "refused"
        if entry.op == "upgrade":
            return "refused" if any(check.blocks for check in entry.checks) else "passed"
        if entry.op == "ask":
            answer = next((e for e in self.entries if e.asked == entry.number and self.outcome(e) != "undone"), None)
            waits = "waits" if awaiting_approval(self.entries) == entry else "asked again"
            return waits if answer is None else "approved" if answer.op == "promote" else "refused"
        closing = self.closing(entry)
        return UNFINISHED if closing is None else {"commit": "done", "undo": "undone"}[closing.op]

    def closing(self, entry: Entry) -> Entry | None:
        """Return the line that commits or undoes an intent."""
        return next((e for e in self.entries if e.op in CLOSING and e.intent == entry.number), None)

    def versions(self) -> dict[str, str]:
        """Return the version of each bundle, by digest."""
        return {digest: version for entry in self.entries for digest, version in entry.versions.items()}

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "name": self.name,
            "intact": self.problem is None,
            "problem": self.problem,
            "registry": {"asked": self.note is None, "note": self.note, "aliases": {**self.aliases}},
            "versions": self.versions(),
            "entries": [entry.model_dump(mode="json", exclude_unset=True) for entry in self.entries],
        }


def history(home: Home, name: str) -> History:
    """Return a model's history, with what other homes did where the registry can be reached; no model is changed.

    What was interrupted is shown as such; the next `promote` or `rollback` finishes it.

    Raises:
        ConfigError: when nothing was promoted under this name.
        StageError: when the registry cannot be reached, and this home knows nothing of the model.
    """
    ledger, note, state = Ledger.of(home.root, checked_name(name)), None, Aliases()
    if (problem := ledger.read()[1]) is None:
        registry = registry_of(home, name)
        try:
            with locked(home.locks / f"promotion-{name}"):
                fetch(registry, ledger)
                state = registry.state()
            problem = _alias_problem(state, ledger.entries())
        except GateFailed as error:
            problem = str(error)
        except StageError as error:
            if not ledger.lines():
                raise
            note = str(error)
    if not ledger.lines() and problem is None:
        known = sorted(path.stem for path in ledger.path.parent.glob("*.jsonl"))
        raise ConfigError(f"{name}: nothing was promoted under this name here; known: {', '.join(known) or 'none'}")
    return History(name, ledger.read()[0], problem, note, state)


def _alias_problem(state: Aliases, entries: list[Entry]) -> str | None:
    """Return which aliases of the registry are not where the ledger left them, or None."""
    committed, intent = last_committed(entries), pending(entries)
    expected = committed.after if committed else {}
    if intent is not None and not moved_since(intent, state):
        return None
    wrong = [alias for alias in sorted({*state, *expected}) if state.get(alias) != expected.get(alias)]
    if not wrong:
        return None
    differences = ", ".join(
        f"{alias} is {state.get(alias, 'nothing')[:12]}, the ledger says {expected.get(alias, 'nothing')[:12]}"
        for alias in wrong
    )
    return f"the registry's aliases were changed by something else: {differences}. Fix: promote or roll back again"
