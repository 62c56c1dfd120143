"""Python environments beside this one: the runtimes' packages exclude each other, so each set has its own.

They lie under the gauntlet's home, each made whole or not at all: the note of what was installed is written last.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.workspace import gauntlet_home

NOTE = "installed.json"
TIMEOUT_S = 900


@dataclass(frozen=True)
class RuntimeEnvironment:
    """What an environment holds, every package pinned."""

    python: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What is written down when all of it is installed."""
        return json.dumps({"python": [*self.python], "npm": [*self.npm], "version": sys.version.split()[0]}, indent=1)


ENVIRONMENTS = {
    "openvino": RuntimeEnvironment(python=("numpy==2.4.6", "openvino==2026.4.1", "onnxruntime-openvino==1.24.1")),
    "web": RuntimeEnvironment(npm=("onnxruntime-web@1.30.0",)),
}


def folder(name: str) -> Path:
    """Return where an environment is: one of ours by its name, any other by its path."""
    if name in ENVIRONMENTS:
        return gauntlet_home() / "environments" / name
    return Path(name).expanduser().resolve()


def python(name: str) -> Path:
    """Return the environment's interpreter."""
    windows = folder(name) / "Scripts" / "python.exe"
    return windows if os.name == "nt" else folder(name) / "bin" / "python"


def missing(name: str) -> str | None:
    """Return why an environment cannot be used, with the way out, or None."""
    if name not in ENVIRONMENTS:
        known = ", ".join(ENVIRONMENTS)
        return None if python(name).is_file() else f"env: {name} has no {python(name).name} (known by name: {known})"
    note = folder(name) / NOTE
    if not note.is_file():
        return f"its environment is not installed; install it with: gauntlet targets install {name}"
    if not _holds(folder(name), ENVIRONMENTS[name]):
        return f"its environment holds other versions than this program wants: gauntlet targets install {name}"
    return None


def install(name: str, say: Callable[[str], None]) -> Path:
    """Make one of our environments; see `make`.

    Raises:
        ConfigError: when there is none of that name.
        StageError: when a package cannot be installed.
    """
    wanted = ENVIRONMENTS.get(name)
    if wanted is None:
        raise ConfigError(f"targets install: {name!r} is no environment; there are: {', '.join(ENVIRONMENTS)}")
    return make(folder(name), wanted, say)


def make(place: Path, wanted: RuntimeEnvironment, say: Callable[[str], None]) -> Path:
    """Make an environment in a folder of its own; one that is there and right stays as it is.

    Raises:
        StageError: when a package cannot be installed.
    """
    name = place.name
    if _holds(place, wanted):
        say(f"{name}: already installed in {place}")
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if wanted.python:
        say(f"{name}: installing {', '.join(wanted.python)} ...")
        _run((sys.executable, "-m", "venv", str(place)))
        pip = (str(python(str(place))), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run((*pip, *wanted.python))
    if wanted.npm:
        npm = shutil.which("npm")
        if npm is None:
            raise StageError(f"targets install {name}: npm is not on the PATH; install Node.js, which brings it")
        say(f"{name}: installing {', '.join(wanted.npm)} ...")
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
        _run((npm, "install", "--prefix", str(place), *quiet, *wanted.npm))
    write_atomically(place / NOTE, wanted.note)
    say(f"{name}: installed in {place}")
    return place


def _holds(place: Path, wanted: RuntimeEnvironment) -> bool:
    note = place / NOTE
    return note.is_file() and note.read_text(encoding="utf-8") == wanted.note


def _run(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"targets install: {error}") from error
    if done.returncode:
        last = "; ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise StageError(f"targets install: {Path(command[0]).name} failed: {last[:400]}")
