"""The project's errors, their exit codes, and the command that installs what is missing."""

import re
from collections.abc import Sequence
from pathlib import Path

RUNTIME_NOISE = (
    (re.compile(r"\[ONNXRuntimeError\] : \d+ : (?!NOT_IMPLEMENTED)\w+ : "), ""),
    (
        re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' Status Message: "),
        r"\1 '\2': ",
    ),
    (re.compile(r"/onnxruntime_src/\S+ [^()]*\([^()]*\)( const)? "), ""),
)
"""Parts of ONNX Runtime's messages that do not help users: error codes and places in its source."""
MAX_TEXT = 400


class PipelineError(Exception):
    """Any error that is reported in one message instead of a traceback."""

    exit_code = 3


class ConfigError(PipelineError):
    """Invalid configuration, arguments or data; the message names file, key, value and what is allowed."""

    exit_code = 2


class GateFailed(PipelineError):  # noqa: N818 - a verdict, not an error
    """A report does not pass its gate; the message names value, limit and fix."""

    exit_code = 1


class NotTried(GateFailed):
    """The time for the search is used up before a candidate's turn."""


class NothingToGain(PipelineError):  # noqa: N818 - a verdict, not an error
    """A candidate does the same work as the model that it was made from, so it is not measured."""


class StageError(PipelineError):
    """A stage could not do its work; the cause is chained."""


class StoreUnavailable(StageError):  # noqa: N818 - a state of the server, not of a stage
    """The store that machines share did not respond for minutes."""


class StoreRefused(ConfigError):  # noqa: N818 - likewise
    """The store that machines share refuses what it is asked: a wrong address, or credentials that do not suffice."""


STORE_ERRORS = (StoreUnavailable, StoreRefused)
"""No candidate is to blame for these, so they end the run."""


def one_line(text: object) -> str:
    """Return a library's message as one line of at most `MAX_TEXT` characters; an error's type if it has no text."""
    line = " ".join(str(text).split()) or type(text).__name__
    for noise, replacement in RUNTIME_NOISE:
        line = noise.sub(replacement, line)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 4]} ..."


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def without_password(text: str) -> str:
    """Return an address, or a text that holds some, with `***` in place of each password."""
    return re.sub(r"(?<=://)([^/@\s:]*):[^/@\s]+@", r"\1:***@", text)


PROJECT = Path(__file__).parents[2]
"""Of a checkout, and of the container image, which has no Makefile; of a wheel, the folder of packages."""
UP = "prefect.yaml"
"""What `gauntlet up` deploys from; a wheel does not have it."""
TARGETS = {"pipeline": "onnx"}
"""Extra -> the Makefile's target, where it has another name."""


def is_checkout() -> bool:
    """Return whether this is a checkout or the container image, with the deployments that `gauntlet up` starts."""
    return (PROJECT / UP).is_file()


def install_command(extra: str, project: Path = PROJECT) -> str:
    """Return the command that installs an extra here."""
    if (project / "Makefile").is_file():
        return f"make {TARGETS.get(extra, extra)}"
    if (project / "pyproject.toml").is_file():
        return f"docker compose build, with {extra} among the EXTRAS of docker/.env"
    return f"pip install 'onnx-gauntlet[{extra}]'"
