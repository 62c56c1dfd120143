"""Whose signatures bundles need on this machine: the keys that a variable names, else those of the home."""

import hashlib
import os
from pathlib import Path

from pydantic import TypeAdapter

from gauntlet.core.errors import ConfigError
from gauntlet.core.workspace import gauntlet_home

TRUSTED_KEYS = "GAUNTLET_TRUSTED_KEYS"
"""Environment variable: files of public keys or certificates, separated as in PATH; it replaces the home's."""


def policy_file() -> Path:
    """Return the file of the home's keys; where there is none, every bundle is used."""
    return gauntlet_home() / "trusted-keys.json"


def home_keys() -> dict[str, tuple[str, str]]:
    """Return the home's keys by SHA-256, each its file's name and its PEM form; `ConfigError` when it is damaged."""
    try:
        keys = TypeAdapter(dict[str, tuple[str, str]]).validate_json(policy_file().read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        keys = {}
    if keys and all(hashlib.sha256(pem.encode()).hexdigest() == digest for digest, (_, pem) in keys.items()):
        return keys
    fix = "Fix: remove it, and name the keys again with: gauntlet trust add PUB.pem"
    raise ConfigError(f"{policy_file()}: whom to trust cannot be read, so no bundle is used. {fix}")


def trusted() -> tuple[str, tuple[Path | bytes, ...]]:
    """Return what names the keys, nothing where every bundle is used, and the keys as files or in PEM form."""
    if named := os.environ.get(TRUSTED_KEYS, ""):
        return f"{TRUSTED_KEYS} ({named})", tuple(Path(key) for key in named.split(os.pathsep) if key)
    keys = home_keys()
    return str(policy_file()) if keys else "", tuple(pem.encode() for _, pem in keys.values())
