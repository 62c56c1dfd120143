"""Helpers of several commands."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen
from gauntlet.reporting.text_format import counted, printable, size

Limits = TypeVar("Limits", bound=Frozen)


class Output(Console):
    """Standard output. When its reader leaves, as `head` does, the command goes on in silence: a run is not lost."""

    def on_broken_pipe(self) -> None:
        """Let no later output reach the reader that has left."""
        with suppress(SystemExit):  # by which rich would end the command, as if a gate had failed
            super().on_broken_pipe()


def given_limits(kind: type[Limits], options: argparse.Namespace, prefix: str = "", **known: Any) -> Limits:
    """Return the values of options by their names, which may have a prefix, and `known` ones; others have the default.

    Raises:
        ConfigError: when a value is not allowed.
    """
    values = {name: getattr(options, prefix + name, None) for name in kind.model_fields}
    try:
        return kind.model_validate({name: value for name, value in values.items() if value is not None} | known)
    except ValidationError as error:
        [first, *_] = error.errors()
        option = f"{prefix}{first['loc'][0]}".replace("_", "-")
        raise ConfigError(f"--{option} {first['input']}: {first['msg']}") from error


def plain(text: str) -> str:
    """Return foreign text as rich prints it literally, without control characters."""
    return escape(printable(text))


def existing_file(name: str | None) -> Path | None:
    """Return the path of an optional file argument.

    Raises:
        ConfigError: when there is no such file.
    """
    if name is not None and not Path(name).is_file():
        raise ConfigError(f"{name}: no such file")
    return Path(name) if name is not None else None


def cleanup_summary(options: argparse.Namespace, cleanup: Any) -> str:
    """Return how much of each kind a clean-up has removed, or would, and the space that it frees."""
    kinds = ("run", "result", "artifact", "leftover")
    parts = ", ".join(counted(len(getattr(cleanup, f"{kind}s")), kind) for kind in kinds)
    return f"{'would remove' if options.dry_run else 'removed'} {parts}: {size(cleanup.size_bytes) or '0 B'}"
