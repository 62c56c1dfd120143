"""Promote a bundle, and roll back to the one before."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from flows.record.home import Home
from flows.record.locks import host
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.loading import refusals
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.report import Check
from gauntlet.datasets import read_split
from wings.lifecycle.library.promotion.gates import damage_check, gates_of_winner, harm_check, run_checks
from wings.lifecycle.library.promotion.ledger import (
    Aliases,
    Entry,
    Role,
    awaiting_approval,
    checked_name,
    last_champion_change,
    last_committed,
    proven_harm,
)
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits, replay_checks
from wings.lifecycle.library.promotion.replayed_requests import (
    Requests,
    golden_requests,
    recorded_requests,
    split_requests,
)
from wings.lifecycle.library.promotion.shadow_replay import shadow_replay
from wings.lifecycle.registry.bundle_cache import bundle_folder, is_address, registry_of, resolve
from wings.lifecycle.registry.model_registry import ModelRegistry
from wings.lifecycle.registry.origin import Origin, find_origin
from wings.lifecycle.registry.transaction import Transaction, transaction

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
    retraining: str = ""
    """Id of the retraining that asked for it, by which that finds the ledger's decision."""
    approve: bool = False
    """Whether another person has to approve it (`registry.approval`) once it may be promoted."""


@dataclass(frozen=True)
class Promotion:
    """What was done."""

    name: str
    entry: Entry
    version: str
    changed: bool
    """False where the alias pointed to the bundle already, or where it waits for an approval."""

    @property
    def waits(self) -> bool:
        """Whether another person has to approve it."""
        return self.entry.op == "ask"


def promote(
    home: Home,
    request: PromotionRequest,
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
    with home.kept():  # what is promoted is there until the registry has it
        return _promote(home, request, on_round, alone)


def _promote(
    home: Home,
    request: PromotionRequest,
    on_round: Callable[[int], None],
    alone: Callable[[], AbstractContextManager[None]],
) -> Promotion:
    origin = origin_of(home, request)
    registry = ModelRegistry(home, origin.uri, checked_name(request.name or origin.name))
    replay: ReplayFacts | None = None
    while True:
        with transaction(home, registry) as held:
            checks = _own_checks(held, origin, request.why)
            if any(check.blocks for check in checks):
                _refuse(held, request, origin, checks, None)
            digest, champion = origin.opened.digest, held.state.get("champion")
            if same := _already(held, request, digest):
                return same
            is_replayed = replay is not None and replay.champion == champion
            if request.role == "challenger" or champion in (None, digest) or is_replayed:
                return _decide(held, request, origin, checks, replay)
            folder = bundle_folder(home, registry, registry.find(str(champion)) or "", str(champion))
        replay = replayed(home, request, origin, Bundle.open(folder), on_round, alone)


def rollback(home: Home, name: str, why: str = "", leaves: str | None = None) -> Promotion:
    """Let `champion` point to the previous champion, and `previous` to the one that it replaces.

    Nothing is changed where a rollback made the champion, unless `leaves` names the champion's version: two people who
    answer the same alarm, or a person and a watch, do not undo each other.

    Raises:
        ConfigError: when there is no previous champion, or `leaves` is neither the champion nor was just left.
        GateFailed: when the previous champion was rolled back for proven harm, and `why` is empty.
        StageError: when the registry cannot be reached, or the previous champion's files are damaged.
    """
    with transaction(home, registry_of(home, checked_name(name))) as held:
        last, champion = last_champion_change(held.ledger.entries()), held.state.get("champion", "")
        version = held.registry.find(champion) or ""
        if leaves != version and last is not None and last.op == "rollback":
            left = held.registry.find(last.before["champion"])
            if leaves in (None, left):
                return Promotion(name, last, version, changed=False)
        if leaves not in (None, version):
            raise ConfigError(
                f"{name}: --from {leaves}: the champion is version {version}. See: gauntlet history {name}"
            )
        if previous := held.state.get("previous"):
            harm = harm_check(proven_harm(held.ledger.entries(), previous), why)
            if harm.blocks:
                raise GateFailed(f"{name}: not rolled back\n{harm}")
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


def origin_of(home: Home, request: PromotionRequest) -> Origin:
    """Return the origin of a run, of a bundle, or of a registered version, which keeps its registry and its name."""
    if not is_address(request.source):
        return find_origin(home, request.source)
    registered = resolve(home, request.source)
    origin, uri = find_origin(home, str(registered.folder)), registry_of(home, registered.name).uri
    same = origin.uri == uri
    experiment, run = (origin.experiment, origin.mlflow_run) if same else (None, None)
    return replace(origin, name=registered.name, uri=uri, experiment=experiment, mlflow_run=run)


def _own_checks(held: Transaction, origin: Origin, why: str) -> tuple[Check, ...]:
    """Return whether the run's gates allow a promotion, and whether the bundle is whole and was never harmful."""
    checks = run_checks(origin.report, why)
    if origin.path is None and any(check.blocks for check in checks):
        return checks
    harm = harm_check(proven_harm(held.ledger.entries(), origin.opened.digest), why)
    return (*checks, damage_check(list(refusals(origin.opened))), harm)


def _already(held: Transaction, request: PromotionRequest, digest: str) -> Promotion | None:
    """Return what was done before, where the alias points to the bundle already, or the same waits for an approval."""
    role, pending = request.role, awaiting_approval(held.ledger.entries())
    if request.approve and pending and (pending.role, pending.digest, pending.before) == (role, digest, held.state):
        return Promotion(held.registry.name, pending, "", changed=False)
    if role == "challenger" and held.state.get("champion") == digest:
        raise ConfigError(f"{held.registry.name}: this bundle is the champion already, so it cannot be the challenger")
    last = last_committed(held.ledger.entries())
    if last is None or not held.state.get(role) == last.after.get(role) == digest:
        return None
    return Promotion(held.registry.name, last, held.registry.find(digest) or "", changed=False)


def _decide(
    held: Transaction, request: PromotionRequest, origin: Origin, checks: tuple[Check, ...], replay: ReplayFacts | None
) -> Promotion:
    """Promote, unless the replay failed."""
    checks = checks if replay is None else (*checks, *replay_checks(replay, request.limits))
    if any(check.blocks for check in checks):
        _refuse(held, request, origin, checks, replay)
    digest, fields = origin.opened.digest, _fields(request, origin, checks, replay)
    if request.approve:
        return Promotion(held.registry.name, held.note("ask", **fields), "", changed=False)
    entry = held.change("promote", aliases_after(held.state, request.role, digest), **fields)
    return Promotion(held.registry.name, entry, held.registry.find(digest) or "", changed=True)


def aliases_after(state: Aliases, role: Role, digest: str) -> Aliases:
    """Return where the aliases stand after a promotion."""
    after: Aliases = {**state, role: digest}
    if role == "champion":
        if state.get("champion", digest) != digest:
            after["previous"] = state["champion"]
        if after.get("challenger") == digest:
            after.pop("challenger")
    return after


def _refuse(
    held: Transaction, request: PromotionRequest, origin: Origin, checks: tuple[Check, ...], replay: ReplayFacts | None
) -> None:
    entry = held.note("refuse", **_fields(request, origin, checks, replay))
    failed = "\n".join(str(check) for check in checks if check.blocks)
    raise GateFailed(f"{held.registry.name}: not promoted (line {entry.number} of {held.ledger.path})\n{failed}")


def _fields(
    request: PromotionRequest, origin: Origin, checks: tuple[Check, ...], replay: ReplayFacts | None
) -> dict[str, object]:
    gates = gates_of_winner(origin.report) if origin.report else ()
    fields: dict[str, object] = {
        "role": request.role,
        "why": request.why,
        "cause": request.cause,
        "retraining": request.retraining,
        "run_id": origin.run_id,
        "replay": replay,
    }
    fields |= {"gates": gates, "checks": checks}
    if origin.path is None:
        return fields
    bundle = origin.opened
    return fields | {"digest": bundle.digest, "bundle": str(origin.path), "candidate": bundle.contract.candidate}


def replayed(
    home: Home,
    request: PromotionRequest,
    origin: Origin,
    champion: Bundle,
    on_round: Callable[[int], None],
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    environment: str | None = None,
) -> ReplayFacts:
    """Replay the requests while nothing else is measured on this host; see `shadow_replay`."""
    requests = _requests(home, request, origin)
    signature = origin.opened.contract.signature
    must_win_on = recorded_requests(request.must_win_on, signature, "--must-win-on") if request.must_win_on else None
    log.info("shadow replay of %s against %s", requests.source, champion.contract.run_id)
    waiting = "shadow replay: waiting until this host is free"
    with host(alone=True, on_wait=lambda: log.info("%s", waiting)), alone():
        return shadow_replay(champion, origin.opened, requests, request.limits, on_round, must_win_on, environment)


def _requests(home: Home, request: PromotionRequest, origin: Origin) -> Requests:
    """Return what is replayed: what was asked for, else the run's test samples, else the bundle's golden ones."""
    signature = origin.opened.contract.signature
    if request.requests is not None:
        return recorded_requests(request.requests, signature)
    data = origin.report.stage("data") if origin.report else None
    test = data.artifacts.get("test") if data else None
    if test is not None and home.store.is_intact(test):
        return split_requests("the run's test samples", read_split(home.store.path(test)), signature)
    return golden_requests(origin.opened)
