"""Extra Python environments: runtimes with conflicting packages each have one, in the gauntlet's home.

A note of what was installed is written last, so an environment without it is incomplete and is installed again.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds
from gauntlet.core.workspace import gauntlet_home

NOTE = "installed.json"
TIMEOUT_S = 900


@dataclass(frozen=True)
class RuntimeEnvironment:
    """The packages of an environment, all pinned."""

    python: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The note of a complete installation."""
        return json.dumps({"python": [*self.python], "npm": [*self.npm], "version": sys.version.split()[0]}, indent=1)


def known() -> Mapping[str, RuntimeEnvironment]:
    """Return the environments that have a name (entry points `environment.NAME`)."""
    return kinds("environment")


def folder(name: str) -> Path:
    """Return the folder of one of our environments by its name, of any other by its path."""
    return gauntlet_home() / "environments" / name if name in known() else Path(name).expanduser().resolve()


def python(name: str) -> Path:
    """Return the environment's interpreter."""
    return folder(name) / "bin" / "python"


def packages(name: str) -> list[str]:
    """Return what is installed in an environment, as names with versions; nothing where it is absent."""
    return sorted(path.stem for path in folder(name).glob("lib/python*/site-packages/*.dist-info"))


def missing(name: str) -> str | None:
    """Return why an environment cannot be used, with the fix, or None."""
    if name not in known():
        lacks = f"env: {name} has no {python(name).name} (known by name: {', '.join(known())})"
        return None if python(name).is_file() else lacks
    if _holds(folder(name), known()[name]):
        return None
    state = "holds other versions than this program needs" if (folder(name) / NOTE).is_file() else "is not installed"
    return f"its environment {state}; install it with: gauntlet targets install {name}"


def make(place: Path, environment: RuntimeEnvironment, say: Callable[[str], None]) -> Path:
    """Install an environment into a folder, unless it is already there.

    Raises:
        StageError: when a package cannot be installed.
    """
    name = place.name
    if _holds(place, environment):
        say(f"{name}: already installed in {place}")
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if environment.python:
        say(f"{name}: installing {', '.join(environment.python)} ...")
        _run((sys.executable, "-m", "venv", str(place)))
        pip = (str(python(str(place))), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run((*pip, *environment.python))
    if environment.npm:
        npm = shutil.which("npm")
        if npm is None:
            raise StageError(f"targets install {name}: npm is not on the PATH; install Node.js, which includes it")
        say(f"{name}: installing {', '.join(environment.npm)} ...")
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
        _run((npm, "install", "--prefix", str(place), *quiet, *environment.npm))
    write_atomically(place / NOTE, environment.note)
    say(f"{name}: installed in {place}")
    return place


def _holds(place: Path, environment: RuntimeEnvironment) -> bool:
    note = place / NOTE
    return note.is_file() and note.read_text(encoding="utf-8") == environment.note


def _run(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"the environment cannot be installed: {error}") from error
    if done.returncode:
        last = "; ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise StageError(f"the environment cannot be installed: {Path(command[0]).name} failed: {last[-400:]}")
