"""Frameworks are optional extras: check that those of a configuration are installed before a run starts."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError, install_command
from gauntlet.core.shipping import configured_stages


def needed_packages(config: PipelineConfig) -> dict[str, tuple[str, str]]:
    """Return the optional packages of a configuration: package -> (the key that needs it, the extra)."""
    parts: dict[str, Any] = {name: getattr(config, name) for name in ("data", "train", "export", "runner")}
    for name in ("optimize", "quantize", "prune"):
        parts |= {f"{name}.{number}": part for number, part in enumerate(getattr(config, name))}
    needed = _packages_of(parts)
    for name, stage in configured_stages(config, "quantized", "winner", "bundle").items():
        needed |= {package: (name, extra) for package, extra in stage.packages.items()}
    return needed


def require_packages(config: PipelineConfig) -> None:
    """Check that all packages of a configuration are installed.

    Raises:
        ConfigError: with the part that needs a missing package, and the command that installs it.
    """
    _require(config.name, needed_packages(config))


def require_packages_of(name: str, key: str, part: object) -> None:
    """Check that the packages of one part of a configuration are installed; raise `ConfigError` as above."""
    _require(name, _packages_of({key: part}))


def _packages_of(parts: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    needed: dict[str, tuple[str, str]] = {}
    for key, part in parts.items():
        for package, extra in getattr(part, "packages", {}).items():
            needed.setdefault(package, (f"{key}.kind {part.kind!r}", extra))
    return needed


def _require(name: str, needed: Mapping[str, tuple[str, str]]) -> None:
    for package, (part, extra) in needed.items():
        if importlib.util.find_spec(package) is None:
            fix = f"install it with: {install_command(extra)}"
            raise ConfigError(f"{name}: {part} needs {package}, which is not installed; {fix}")
