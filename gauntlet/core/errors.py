"""The project's errors and their exit codes."""

import re


class PipelineError(Exception):
    """Any error that is reported in one message instead of a traceback."""

    exit_code = 3


class ConfigError(PipelineError):
    """Invalid configuration or arguments; the message names file, key, value and what is allowed."""

    exit_code = 2


class GateFailed(PipelineError):  # noqa: N818 - a verdict, not an error
    """A report does not pass its gate; the message names value, limit and fix."""

    exit_code = 1


class StageError(PipelineError):
    """A stage could not do its work; the cause is chained."""


def one_line(error: Exception, most: int = 200) -> str:
    """Return the start of an error's text on one line; its type where it has no text."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def without_password(text: str) -> str:
    """Return an address, or a text that holds some, with `***` in place of each password."""
    return re.sub(r"(?<=://)([^/@\s:]*):[^/@\s]+@", r"\1:***@", text)
