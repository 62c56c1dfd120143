"""A bundle that must be signed is not used where nothing can verify signatures."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import gauntlet
from gauntlet.bundle.loading import TRUSTED_KEYS
from gauntlet.core.kinds import GROUP, kinds


def test_bundle_is_refused_where_what_verifies_its_signature_was_removed(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = EntryPoint("signature.verify", "wings.nowhere.signing:verify_signatures", GROUP)
    monkeypatch.setattr("gauntlet.core.kinds.points", lambda: (gone,))
    monkeypatch.setenv(TRUSTED_KEYS, "PUB.pem")
    kinds.cache_clear()
    with pytest.raises(gauntlet.ConfigError, match=rf"{TRUSTED_KEYS}: signature\.verify is in wings\.nowhere\.signing"):
        gauntlet.load(packed)
    kinds.cache_clear()
