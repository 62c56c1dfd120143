"""Refuse files that run code when a framework opens them, unless this home stored them or the user trusts them."""

from gauntlet.core.errors import StageError

TRUST = "if you trust its author, allow it: train.trust=true in a configuration, --trust with gauntlet bench"


def untrusted_code(file: object, why: str) -> StageError:
    """Return the refusal of a file that would run code, and is neither stored in this home nor trusted by the user."""
    return StageError(f"{file}: {why}; refused. Fix: {TRUST}")
