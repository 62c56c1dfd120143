"""What can go wrong, and the exit code that says so.

PipelineError
├── ConfigError   exit 2: the question was wrong (file, key, value, what is allowed)
├── GateFailed    exit 1: the answer is no (value, limit, way out)
└── StageError    exit 3: there is no answer, because a stage broke
"""

import re


class PipelineError(Exception):
    """Anything that this project reports in one message instead of a traceback."""

    exit_code = 3


class ConfigError(PipelineError):
    """A configuration that is refused before anything runs."""

    exit_code = 2


class GateFailed(PipelineError):  # noqa: N818 - a verdict, not an error
    """A stage did its work and its report does not pass."""

    exit_code = 1


class StageError(PipelineError):
    """A stage could not do its work; the cause is chained."""

    exit_code = 3


def one_line(error: Exception, most: int = 200) -> str:
    """Return the start of an error's text on one line; its type where it has no text."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def without_password(text: str) -> str:
    """Return an address, or a text that holds some, with `***` in place of each password."""
    return re.sub(r"(?<=://)([^/@\s:]*):[^/@\s]+@", r"\1:***@", text)
