"""Frameworks are extras: a run that needs one that is not installed is refused before anything starts."""

import importlib.util
from typing import Any

from configs.schema import PipelineConfig
from tasks.errors import ConfigError
from tasks.loadgen import PACKAGES as LOADGEN


def needed_packages(config: PipelineConfig) -> dict[str, tuple[str, str]]:
    """Return the packages outside the core that a configuration needs: by name, the key that asks, and the extra."""
    parts: dict[str, Any] = {"data": config.data, "train": config.train, "export": config.export}
    parts |= {f"optimize.{number}": graph_pass for number, graph_pass in enumerate(config.optimize)}
    parts |= {f"quantize.{number}": recipe for number, recipe in enumerate(config.quantize)}
    found: dict[str, tuple[str, str]] = {}
    for key, part in parts.items():
        for package, extra in getattr(part, "packages", {}).items():
            found.setdefault(package, (f"{key}.kind {part.kind!r}", extra))
    if config.loadgen:
        found |= {package: ("loadgen", extra) for package, extra in LOADGEN.items()}
    return found


def require_packages(config: PipelineConfig) -> None:
    """Refuse a configuration whose frameworks are not installed.

    Raises:
        ConfigError: naming the part that needs the package, and the command that installs it.
    """
    for package, (part, extra) in needed_packages(config).items():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{config.name}: {part} needs {package}, which is not installed; install it with: make {extra}"
            )
