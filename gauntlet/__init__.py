"""The library under the pipeline: no stage, no Prefect, no MLflow."""

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gauntlet.bundle.predictor import Predictor

# ONNX Runtime's wheels report sessions, errors and a device id to their vendor, on Linux too since 1.31. It reads this
# when it is imported. What the user set stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def load(bundle: "str | Path", *, threads: int | None = None) -> "Predictor":
    """Return a bundle's model, ready to predict: `gauntlet.load("digits.zip")("image.png")`.

    It runs on the target that it won on; where that cannot run here, in ONNX Runtime, and a warning says why. `threads`
    are those of the session, by default the winner's in the race.

    Raises:
        ConfigError: when it is no bundle, when a file in it is damaged, or when it lacks a signature that
            `GAUNTLET_TRUSTED_KEYS` asks for.
        StageError: when the runtime rejects the model, or the model rejects this processor.
    """
    from pathlib import Path

    from gauntlet.bundle.bundle import Bundle
    from gauntlet.bundle.predictor import Predictor
    from gauntlet.bundle.signing import refusals
    from gauntlet.core.errors import ConfigError

    opened = Bundle.open(Path(bundle))
    for line in refusals(opened):
        raise ConfigError(f"{bundle}: {line}. Fix: copy the bundle again, or make it anew with: gauntlet bundle RUN")
    predictor = Predictor(opened, threads=threads)
    if predictor.not_as_raced:
        logging.getLogger("gauntlet").warning(predictor.not_as_raced)
    return predictor
