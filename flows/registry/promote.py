"""Promote a bundle, and roll back to the one before."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from flows.record.home import Home
from flows.record.locks import host
from flows.registry.bundle_cache import bundle_folder, is_address, registry_of, resolve
from flows.registry.model_registry import ModelRegistry
from flows.registry.origin import Origin, find_origin
from flows.registry.transaction import Transaction, transaction
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.report import Check
from gauntlet.datasets import read_split
from gauntlet.promotion.gates import damage_check, gates_of_winner, run_checks
from gauntlet.promotion.ledger import Aliases, Entry, Role, checked_name, last_committed
from gauntlet.promotion.replay_facts import ReplayFacts, ReplayLimits, replay_checks
from gauntlet.promotion.requests import Requests, golden_requests, recorded_requests, split_requests
from gauntlet.promotion.shadow_replay import shadow_replay

log = logging.getLogger("gauntlet")


@dataclass(frozen=True)
class PromotionRequest:
    """What a person asks for."""

    source: str
    """A run of the home, a bundle, or a registered version: `models:/NAME@challenger`."""
    role: Role = "champion"
    name: str | None = None
    """Of the registered model; by default, the run's."""
    why: str = ""
    requests: Path | None = None
    """To replay; by default, the run's test samples, or the golden ones of a bundle from elsewhere."""
    limits: ReplayLimits = field(default_factory=ReplayLimits)
    must_win_on: Path | None = None
    """Labeled requests on which the challenger must be proven to be more accurate than the champion."""
    cause: str = ""
    """What asked for it, where no person did."""


@dataclass(frozen=True)
class Promotion:
    """What was done."""

    name: str
    entry: Entry
    version: str
    changed: bool
    """False where the alias pointed to the bundle already."""


def promote(
    home: Home,
    asked: PromotionRequest,
    *,
    on_round: Callable[[int], None] = lambda _: None,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Promotion:
    """Let an alias point to a bundle, once its gates and a shadow replay against the champion allow it.

    `alone` is held, besides the lock of this host, while latencies are measured. A replay takes minutes and holds no
    lock of the model, so that a rollback never waits; if the champion changes meanwhile, it is repeated.

    Raises:
        ConfigError: when there is no such run or bundle.
        GateFailed: when the promotion is refused; the ledger says so, too.
        StageError: when the registry cannot be reached, or a model cannot be run.
    """
    origin = _origin(home, asked)
    registry = ModelRegistry(home, origin.uri, checked_name(asked.name or origin.name))
    replay: ReplayFacts | None = None
    while True:
        with transaction(home, registry) as held:
            checks = _own_checks(origin, asked.why)
            if any(check.blocks for check in checks):
                _refuse(held, asked, origin, checks, None)
            digest, champion = origin.opened.digest, held.state.get("champion")
            if same := _already(held, asked.role, digest):
                return same
            replayed = replay is not None and replay.champion == champion
            if asked.role == "challenger" or champion in (None, digest) or replayed:
                return _decide(held, asked, origin, checks, replay)
            folder = bundle_folder(home, registry, registry.find(str(champion)) or "", str(champion))
        replay = _replay(home, asked, origin, Bundle.open(folder), on_round, alone)


def rollback(home: Home, name: str, why: str = "") -> Promotion:
    """Let `champion` point to the previous champion, and `previous` to the one that it replaces.

    Raises:
        ConfigError: when there is no previous champion.
        StageError: when the registry cannot be reached, or the previous champion's files are damaged.
    """
    with transaction(home, registry_of(home, checked_name(name))) as held:
        return roll_back(held, why)


def roll_back(held: Transaction, why: str, harm: tuple[Check, ...] = ()) -> Promotion:
    """Do what `rollback` does in a transaction; `harm` is the evidence for it, besides the files' digests."""
    registry, previous = held.registry, held.state.get("previous")
    if previous is None:
        name = registry.name
        raise ConfigError(f"{name}: there is no previous champion to go back to. See: gauntlet history {name}")
    version = registry.find(previous) or ""
    bundle = Bundle.open(bundle_folder(held.home, registry, version, previous))
    after: Aliases = {**held.state, "champion": previous}
    after.pop("previous")
    if "champion" in held.state:
        after["previous"] = held.state["champion"]
    if after.get("challenger") == previous:
        after.pop("challenger")
    contract = bundle.contract
    entry = held.change(
        "rollback",
        after,
        role="champion",
        why=why,
        digest=previous,
        bundle=str(bundle.folder),
        run_id=contract.run_id,
        candidate=contract.candidate,
        checks=(damage_check(list(bundle.damage())), *harm),
    )
    return Promotion(registry.name, entry, version, changed=True)


def _origin(home: Home, asked: PromotionRequest) -> Origin:
    """Return the origin of a run, of a bundle, or of a registered version, which keeps its registry and its name."""
    if not is_address(asked.source):
        return find_origin(home, asked.source)
    found = resolve(home, asked.source)
    origin, uri = find_origin(home, str(found.folder)), registry_of(home, found.name).uri
    same = origin.uri == uri
    experiment, run = (origin.experiment, origin.mlflow_run) if same else (None, None)
    return replace(origin, name=found.name, uri=uri, experiment=experiment, mlflow_run=run)


def _own_checks(origin: Origin, why: str) -> tuple[Check, ...]:
    """Return whether the run's gates allow a promotion, and whether the bundle is whole."""
    checks = run_checks(origin.report, why)
    if origin.path is None and any(check.blocks for check in checks):
        return checks
    return (*checks, damage_check(list(origin.opened.damage())))


def _already(held: Transaction, role: Role, digest: str) -> Promotion | None:
    """Return what was done before, where the alias points to the bundle already, and the ledger says so."""
    if role == "challenger" and held.state.get("champion") == digest:
        raise ConfigError(f"{held.registry.name}: this bundle is the champion already, so it cannot be the challenger")
    last = last_committed(held.ledger.entries())
    if last is None or not held.state.get(role) == last.after.get(role) == digest:
        return None
    return Promotion(held.registry.name, last, held.registry.find(digest) or "", changed=False)


def _decide(
    held: Transaction, asked: PromotionRequest, origin: Origin, checks: tuple[Check, ...], replay: ReplayFacts | None
) -> Promotion:
    """Promote, unless the replay failed."""
    checks = checks if replay is None else (*checks, *replay_checks(replay, asked.limits))
    if any(check.blocks for check in checks):
        _refuse(held, asked, origin, checks, replay)
    digest = origin.opened.digest
    entry = held.change("promote", _after(held.state, asked.role, digest), **_fields(asked, origin, checks, replay))
    return Promotion(held.registry.name, entry, held.registry.find(digest) or "", changed=True)


def _after(state: Aliases, role: Role, digest: str) -> Aliases:
    after: Aliases = {**state, role: digest}
    if role == "champion":
        if state.get("champion", digest) != digest:
            after["previous"] = state["champion"]
        if after.get("challenger") == digest:
            after.pop("challenger")
    return after


def _refuse(
    held: Transaction, asked: PromotionRequest, origin: Origin, checks: tuple[Check, ...], replay: ReplayFacts | None
) -> None:
    entry = held.refuse(**_fields(asked, origin, checks, replay))
    failed = "\n".join(str(check) for check in checks if check.blocks)
    raise GateFailed(f"{held.registry.name}: not promoted (line {entry.number} of {held.ledger.path})\n{failed}")


def _fields(
    asked: PromotionRequest, origin: Origin, checks: tuple[Check, ...], replay: ReplayFacts | None
) -> dict[str, object]:
    gates = gates_of_winner(origin.report) if origin.report else ()
    fields: dict[str, object] = {
        "role": asked.role,
        "why": asked.why,
        "cause": asked.cause,
        "run_id": origin.run_id,
        "replay": replay,
    }
    fields |= {"gates": gates, "checks": checks}
    if origin.path is None:
        return fields
    bundle = origin.opened
    return fields | {"digest": bundle.digest, "bundle": str(origin.path), "candidate": bundle.contract.candidate}


def _replay(
    home: Home,
    asked: PromotionRequest,
    origin: Origin,
    champion: Bundle,
    on_round: Callable[[int], None],
    alone: Callable[[], AbstractContextManager[None]],
) -> ReplayFacts:
    requests = _requests(home, asked, origin)
    signature = origin.opened.contract.signature
    must_win_on = recorded_requests(asked.must_win_on, signature, "--must-win-on") if asked.must_win_on else None
    log.info("shadow replay of %s against %s", requests.source, champion.contract.run_id)
    waiting = "shadow replay: waiting until this host is free"
    with host(alone=True, on_wait=lambda: log.info("%s", waiting)), alone():
        return shadow_replay(champion, origin.opened, requests, asked.limits, on_round, must_win_on)


def _requests(home: Home, asked: PromotionRequest, origin: Origin) -> Requests:
    """Return what is replayed: what was asked for, else the run's test samples, else the bundle's golden ones."""
    signature = origin.opened.contract.signature
    if asked.requests is not None:
        return recorded_requests(asked.requests, signature)
    data = origin.report.stage("data") if origin.report else None
    test = data.artifacts.get("test") if data else None
    if test is not None and home.store.path(test).exists():
        return split_requests("the run's test samples", read_split(home.store.path(test)), signature)
    return golden_requests(origin.opened)
