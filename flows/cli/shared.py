"""Helpers of several commands."""

from pathlib import Path

from rich.markup import escape

from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import printable


def plain(text: str) -> str:
    """Return foreign text as rich prints it literally, without control characters."""
    return escape(printable(text))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def existing_file(name: str | None) -> Path | None:
    """Return the path of an optional file argument.

    Raises:
        ConfigError: when there is no such file.
    """
    if name is not None and not Path(name).is_file():
        raise ConfigError(f"{name}: no such file")
    return Path(name) if name is not None else None
