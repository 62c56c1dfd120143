"""A canary: the challenger answers 1, 10 and 100 % of the requests, and becomes the champion unless harm is proven.

The champion runs on the logged inputs of what the challenger has answered, as after a promotion: the same tests, from
the first step on, so the level is that of all looks together. Each step is a change in the ledger, and servers that
follow the champion's alias take the share from the registry.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.report import Check
from gauntlet.request_log.log_format import VERSION_DIGITS
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.monitor import monitor
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.monitoring.predecessor import Predecessor
from wings.lifecycle.library.promotion.gates import harm_check
from wings.lifecycle.library.promotion.ledger import Entry, checked_name, proven_harm, running_canary
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.registry.bundle_cache import bundle_folder, registry_of
from wings.lifecycle.registry.promote import Promotion, PromotionRequest, promote
from wings.lifecycle.registry.transaction import Transaction, transaction

STEPS = (0.01, 0.1, 1.0)
"""Shares of the requests that the challenger answers, one after the other."""


@dataclass(frozen=True)
class CanaryLook:
    """What a look found and did."""

    name: str
    entry: Entry
    """The step that runs now, or what ended the canary."""
    answered: int = 0
    """Requests that the challenger has answered in this step."""
    promotion: Promotion | None = None
    waiting: int = 0
    """Labels of the challenger's requests that are not judged yet."""

    @property
    def has_ended(self) -> bool:
        """Whether the canary was stopped, or the challenger is the champion."""
        return self.promotion is not None or not self.entry.share


def advance(
    home: Home,
    name: str,
    log: Path,
    limits: MonitorLimits,
    replay: ReplayLimits,
    *,
    per_step: int,
    why: str = "",
    may_start: bool = True,
) -> CanaryLook:
    """Start the canary of a model's challenger, or look at it: stop it for proven harm, or let it take its next step.

    A step ends once the challenger has answered `per_step` logged requests. After the last one, the challenger is
    promoted, as `promote` does with the limits of `replay`. What a kill interrupts, the next look finishes.

    Raises:
        ConfigError: when there is no champion or challenger, or no log; or no canary that `may_start` allows.
        GateFailed: when the promotion is refused, which ends the canary.
        StageError: when the registry cannot be reached, or a file is damaged.
    """
    registry = registry_of(home, checked_name(name))
    with transaction(home, registry) as held:
        steps = running_canary(held.ledger.entries())
        if not steps and not may_start:
            raise ConfigError(f"{name}: another command has ended the canary. See: gauntlet history {name}")
        if not steps:
            return CanaryLook(name, _step(held, _challenger(held, why), STEPS[0], why))
        digests = [str(held.state.get(alias)) for alias in ("champion", "challenger")]
        folders = [bundle_folder(held.home, held.registry, held.registry.find(each) or "", each) for each in digests]
        champion, challenger = map(Bundle.open, folders)
    since, step = (datetime.fromisoformat(entry.time).timestamp() for entry in (steps[0], steps[-1]))
    version = challenger.digest[:VERSION_DIGITS]
    answered = sum(outcome.time >= step for outcome in RequestLogReader(log).outcomes(version))
    if not answered:
        return CanaryLook(name, steps[-1])
    result, _ = monitor(challenger, log, limits, previous=Predecessor(champion, since))
    harm = result.previous.harm if result.previous else ()
    with transaction(home, registry) as held:
        if running_canary(held.ledger.entries()) != steps:
            raise ConfigError(f"{name}: the canary was changed meanwhile. See: gauntlet history {name}")
        if result.previous and harm:
            entry = _step(held, challenger.digest, 0, f"proven harm: {'; '.join(harm)}", result.previous.checks)
            return CanaryLook(name, entry, answered)
        larger = [share for share in STEPS if share > (steps[-1].share or 0)]
        waiting = result.risk.waiting if result.risk else 0
        if answered < per_step:
            return CanaryLook(name, steps[-1], answered, waiting=waiting)
        if larger:
            return CanaryLook(name, _step(held, challenger.digest, larger[0], why), waiting=waiting)
    try:
        done = promote(home, PromotionRequest(f"models:/{name}@challenger", why=why, limits=replay, cause="canary"))
    except GateFailed as error:
        end(home, name, f"not promoted: {str(error).splitlines()[-1]}")
        raise
    return CanaryLook(name, done.entry, answered, done)


def end(home: Home, name: str, why: str) -> CanaryLook:
    """Let the champion answer everything again; `ConfigError` when no canary runs."""
    with transaction(home, registry_of(home, checked_name(name))) as held:
        steps = running_canary(held.ledger.entries())
        if not steps:
            raise ConfigError(f"{name}: no canary runs. See: gauntlet history {name}")
        return CanaryLook(name, _step(held, str(steps[-1].digest), 0, why))


def _challenger(held: Transaction, why: str) -> str:
    """Return the digest of the challenger, which may be tried."""
    name = held.registry.name
    if "champion" not in held.state or "challenger" not in held.state:
        fix = f"Fix: gauntlet promote RUN --name {name} --as challenger"
        raise ConfigError(f"{name}: a canary needs a champion and a challenger. {fix}")
    harm = harm_check(proven_harm(held.ledger.entries(), held.state["challenger"]), why)
    if harm.blocks:
        raise GateFailed(f"{name}: no canary\n{harm}")
    return held.state["challenger"]


def _step(held: Transaction, digest: str, share: float, why: str, checks: tuple[Check, ...] = ()) -> Entry:
    return held.change("canary", held.state, role="challenger", digest=digest, share=share, why=why, checks=checks)
