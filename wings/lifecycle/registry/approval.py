"""A promotion that waits for another person: approve it or refuse it.

`promote` with `approve` asks once the checks and the replay have passed, and changes nothing. The ledger has the
question with its evidence, and the answer with its reason.
"""

from flows.record.home import Home
from gauntlet.core.errors import ConfigError, GateFailed
from wings.lifecycle.library.promotion.ledger import awaiting_approval, checked_name
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.promote import Promotion, aliases_after
from wings.lifecycle.registry.transaction import transaction

COPIED = ("role", "digest", "bundle", "run_id", "candidate", "gates", "checks", "replay")
"""What the answer's line repeats of the question's."""


def decide(home: Home, name: str, approved: bool, why: str, who: str = "") -> Promotion:
    """Carry out the promotion that waits for an approval, or refuse it.

    `who` names the person where this process acts for one, as in Prefect; otherwise the account of this process
    decides, and may not be the one that asked.

    Raises:
        ConfigError: when nothing waits, there is no reason, or the asker answers.
        GateFailed: when the champion is another one than when it was asked.
        StageError: when the registry cannot be reached.
    """
    if not why.strip():
        raise ConfigError(f"{name}: a decision needs a reason. Fix: --why TEXT")
    with transaction(home, registry_of(home, checked_name(name))) as held:
        asked = awaiting_approval(held.ledger.entries())
        if asked is None:
            raise ConfigError(f"{name}: no promotion waits for an approval. See: gauntlet history {name}")
        asker, answerer = (by.partition(" (")[0] for by in (asked.by, held.signed()["by"]))  # accounts, on any machine
        if not who and asker == answerer:
            raise ConfigError(f"{name}: {asked.by} asked for the promotion, so another person has to answer")
        cause = f"{'approved' if approved else 'refused'} by {who}" if who else ""
        fields = {key: getattr(asked, key) for key in COPIED} | {"asked": asked.number, "why": why, "cause": cause}
        if not approved:
            return Promotion(name, held.note("refuse", **fields), "", changed=False)
        if held.state != asked.before:  # what it was compared with is not the champion any more
            fix = "Fix: promote it again, which compares it with the champion of now"
            raise GateFailed(f"{name}: the aliases have changed since line {asked.number} asked for an approval. {fix}")
        assert asked.role is not None and asked.digest is not None
        entry = held.change("promote", aliases_after(held.state, asked.role, asked.digest), **fields)
        return Promotion(name, entry, held.registry.find(asked.digest) or "", changed=True)
