"""Load a bundle to predict with it: `gauntlet.load`, which uses none that is damaged or not signed as asked."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import required

TRUSTED_KEYS = "GAUNTLET_TRUSTED_KEYS"
"""Environment variable: files of public keys, separated as in PATH; where it is set, only signed bundles are used."""


def load_bundle(path: Path, *, threads: int | None = None) -> Predictor:
    """See `gauntlet.load`."""
    bundle = Bundle.open(path)
    for line in refusals(bundle):
        raise ConfigError(f"{path}: {line}. Fix: copy the bundle again, or make it anew with: gauntlet bundle RUN")
    predictor = Predictor(bundle, threads=threads)
    if predictor.not_as_raced:
        logging.getLogger("gauntlet").warning(predictor.not_as_raced)
    return predictor


def refusals(bundle: Bundle) -> Iterator[str]:
    """Yield why a bundle may not be used: its damage, and a missing signature where `TRUSTED_KEYS` asks for one.

    Raises:
        ConfigError: when a trusted key cannot be read, or nothing that is installed verifies signatures.
    """
    yield from bundle.damage()
    if trusted := os.environ.get(TRUSTED_KEYS, ""):
        keys = [Path(key) for key in trusted.split(os.pathsep) if key]
        verify = required("signature", "verify", TRUSTED_KEYS)
        results = [result for key in keys for result in verify(bundle, key)]
        if not any(result.trusted for result in results):
            sign_it = "Sign it with: gauntlet bundle RUN --key KEY.pem"
            yield f"no signature by a key of {TRUSTED_KEYS} ({trusted}). {sign_it}"
