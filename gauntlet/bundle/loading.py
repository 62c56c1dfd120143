"""Load a bundle to predict with it: `gauntlet.load`."""

import logging
from pathlib import Path

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.signing import refusals
from gauntlet.core.errors import ConfigError


def load_bundle(path: Path, *, threads: int | None = None) -> Predictor:
    """See `gauntlet.load`."""
    bundle = Bundle.open(path)
    for line in refusals(bundle):
        raise ConfigError(f"{path}: {line}. Fix: copy the bundle again, or make it anew with: gauntlet bundle RUN")
    predictor = Predictor(bundle, threads=threads)
    if predictor.not_as_raced:
        logging.getLogger("gauntlet").warning(predictor.not_as_raced)
    return predictor
