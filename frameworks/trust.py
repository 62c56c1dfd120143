"""Refuse files that run code when a framework opens them, unless this home stored them or the user trusts them."""

from gauntlet.core.errors import StageError

TRUST = (
    "if you trust its author, allow it: --trust with gauntlet run MODEL or bench, train.trust=true in a configuration"
)


def untrusted_code(file: object, why: str) -> StageError:
    """Return the refusal of a file that would run code, and is neither stored in this home nor trusted by the user."""
    return StageError(f"{file}: {why}; refused. Fix: {TRUST}")
