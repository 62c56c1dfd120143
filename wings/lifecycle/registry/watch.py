"""Watch a champion after its promotion, and roll it back once harm is proven.

Only a promotion is watched. What a rollback made the champion stays until a person or a promotion replaces it, so two
versions never replace each other in turns, and evidence from before the promotion never counts.
"""

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.request_log.log_format import VERSION_DIGITS
from wings.lifecycle.library.monitoring.monitor import PAGE, RESULT, monitor
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, MonitorResult
from wings.lifecycle.library.monitoring.predecessor import DEFAULT_DROP, Predecessor
from wings.lifecycle.library.promotion.ledger import Entry, checked_name, last_champion_change
from wings.lifecycle.registry.bundle_cache import bundle_folder, registry_of
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.promote import Promotion, roll_back
from wings.lifecycle.registry.transaction import Transaction, transaction

log = logging.getLogger("gauntlet")

ROLLED_BACK = "gauntlet.rolled_back"
"""Tag of a version that was rolled back for proven harm: when, in ISO 8601."""
REASON = "gauntlet.rolled_back.reason"
EVIDENCE = "rollback"
"""Folder of the evidence in the version's run."""
DROP = "promote.max_accuracy_drop"
LONGEST_TAG = 5000


@dataclass(frozen=True)
class Watched:
    """What a look found and did."""

    result: MonitorResult
    folder: Path
    """With the page and the result."""
    rollback: Promotion | None = None
    note: str = ""
    """Why harm is not rolled back."""


def watch(
    home: Home, name: str, request_log: Path, limits: MonitorLimits, *, out: Path | None = None, restart: bool = False
) -> Watched:
    """Judge a model's champion, also against the champion before it, and roll it back where that is proven better.

    Each version has a folder of its own below `out`, by default in the log's. What a kill interrupts, the next look, or
    any other command on the model, finishes.

    Raises:
        ConfigError: when there is no champion, no log, or the bundle has no reference.
        StageError: when the registry cannot be reached, or a file is damaged.
    """
    registry, places = registry_of(home, checked_name(name)), out or request_log / "monitors"
    with transaction(home, registry) as held:
        champion, promotion, note = held.state.get("champion"), *_watched_promotion(held)
        _finish_notes(held, places)
    if champion is None:
        raise ConfigError(f"{name}: there is no champion to watch. Fix: promote a run: gauntlet promote RUN")
    bundle = _bundle(home, registry, champion)
    previous = _predecessor(home, registry, promotion) if promotion else None
    folder = places / _folder_name(bundle)
    result, _ = monitor(bundle, request_log, limits, out=folder, restart=restart, previous=previous)
    if promotion is None or result.previous is None or not result.previous.harm:
        return Watched(result, folder, note=note)
    with transaction(home, registry) as held:
        if _watched_promotion(held)[0] != promotion:
            return Watched(result, folder, note="the champion was replaced meanwhile")
        done = roll_back(held, f"proven harm: {'; '.join(result.previous.harm)}", result.previous.checks)
        try:
            _finish_notes(held, places)
        except StageError as error:  # the champion is back; only its evidence is missing in MLflow
            log.warning("%s: the next look stores the evidence in MLflow: %s", name, error)
    log.warning("%s: rolled back to version %s: %s", name, done.version, done.entry.why)
    return Watched(result, folder, done)


def _watched_promotion(held: Transaction) -> tuple[Entry | None, str]:
    """Return the promotion that made the champion, or why the champion is not watched."""
    change = last_champion_change(held.ledger.entries())
    state = held.state
    if change is None or change.after.get("champion") != state.get("champion"):
        return None, "no promotion in the ledger made this champion"
    if change.op == "rollback":
        return None, "a rollback made this champion, and no rollback is rolled back"
    if change.before.get("champion") is None or state.get("previous") != change.before.get("champion"):
        return None, "there is no champion before this one"
    return change, ""


def _predecessor(home: Home, registry: ModelRegistry, promotion: Entry) -> Predecessor:
    bundle = _bundle(home, registry, promotion.before["champion"])
    allowed = next((check.limit for check in promotion.checks if check.name == DROP), DEFAULT_DROP)
    return Predecessor(bundle, datetime.fromisoformat(promotion.time).timestamp(), allowed)


def _bundle(home: Home, registry: ModelRegistry, digest: str) -> Bundle:
    return Bundle.open(bundle_folder(home, registry, registry.find(digest) or "", digest))


def _folder_name(bundle: Bundle) -> str:
    return f"{bundle.contract.name}-{bundle.digest[:VERSION_DIGITS]}"


def _finish_notes(held: Transaction, places: Path) -> None:
    """Let MLflow have the evidence of the last change, where that was a rollback for harm and a kill came between."""
    change = last_champion_change(held.ledger.entries())
    if change is None or change.op != "rollback" or not any(check.name.startswith("watch.") for check in change.checks):
        return
    harmful = change.before["champion"]
    version = held.registry.find(harmful)
    if version is None or held.registry.tags(version).get(ROLLED_BACK) == change.time:
        return
    folder = places / _folder_name(_bundle(held.home, held.registry, harmful))
    files = [file for file in (folder / PAGE, folder / RESULT) if file.is_file()]
    tags = {REASON: change.why[:LONGEST_TAG], ROLLED_BACK: change.time}
    held.registry.note(version, tags, files, EVIDENCE)
