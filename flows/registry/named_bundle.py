"""The bundle that a person names: a file or a folder, or a registered model, of which it is the champion."""

from pathlib import Path

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle


def named_bundle(home: Home, source: str) -> Bundle:
    """Open a bundle, or the champion of the registered model with this name, or `models:/NAME@ALIAS`.

    Raises:
        ConfigError: when there is neither.
        StageError: when the registry cannot be reached, or its files are damaged.
    """
    if Path(source).exists() or Path(source).suffix == ".zip" or ("/" in source and not source.startswith("models:")):
        return Bundle.open(Path(source))
    from flows.registry.bundle_cache import is_address, resolve  # loads MLflow, which a bundle does not need

    return Bundle.open(resolve(home, source if is_address(source) else f"models:/{source}@champion").folder)
