"""What installed packages add to the product: targets, exporters, commands and more, found by their entry points.

An entry point of the group `gauntlet.kinds` is named `PART.NAME`, for example `target.my-runtime`. The wings of this
project are found in the same way as packages of other people.
"""

import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gauntlet.core.errors import ConfigError, one_line

GROUP = "gauntlet.kinds"


class BeingImportedError(ConfigError):
    """A package's kind is not there yet: a module that it imports is the first to look for it."""


@cache
def points() -> tuple[EntryPoint, ...]:
    """Return the entry points of all parts, in the order of their names; the search takes 10 ms, so it is made once.

    Raises:
        ConfigError: when another package would be imported in place of one of ours.
    """
    require_own_packages()
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


@cache
def kinds(part: str) -> Mapping[str, Any]:
    """Return what installed packages bring for a part, by name, in the order of the names.

    Raises:
        ConfigError: when an entry point cannot be loaded, or two packages bring the same name.
    """
    brought: dict[str, Any] = {}
    for point in points():
        of, _, name = point.name.partition(".")
        if of != part:
            continue
        if name in brought:
            raise ConfigError(f"two packages bring the {part} {name!r} (entry points {GROUP}); uninstall one of them")
        try:
            brought[name] = point.load()
        except ModuleNotFoundError as error:
            if not f"{point.module}.".startswith(f"{error.name}."):  # else its own folder is gone, as after `rm -r`
                raise ConfigError(_broken(point, error)) from error
        except Exception as error:
            if _is_being_imported(point):
                raise BeingImportedError(_broken(point, error)) from error
            raise ConfigError(_broken(point, error)) from error
    return MappingProxyType(brought)


def required(part: str, name: str, what: str) -> Any:
    """Return what installed packages bring by a name; raise `ConfigError` where none does: `what` asks for it."""
    if name in kinds(part):
        return kinds(part)[name]
    raise ConfigError(f"{what}: {removed(f'{part}.{name}') or 'nothing that is installed brings it'}")


def is_brought(part: str) -> bool:
    """Return whether anything that is installed brings something for a part; nothing is loaded."""
    return any(point.name.startswith(f"{part}.") and _is_there(point) for point in points())


def removed(pattern: str) -> str:
    """Return what to install again for kinds whose folder is gone, such as `store.*`; empty where there are none."""
    for point in points():
        if fnmatch(point.name, pattern) and not _is_there(point):
            package = point.dist.name if point.dist else "its package"
            return f"{point.name} is in {point.module}, which is not there. Fix: install {package} with that folder"
    return ""


def _is_there(point: EntryPoint) -> bool:
    try:
        return find_spec(point.module) is not None
    except ModuleNotFoundError:
        return False


def _is_being_imported(point: EntryPoint) -> bool:
    """Return whether a module of the entry point's package has begun to be imported, and not ended."""
    package = point.module.partition(".")[0]
    own = [module for name, module in [*sys.modules.items()] if name.partition(".")[0] == package]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in own)


def _broken(point: EntryPoint, error: Exception) -> str:
    package = point.dist.name if point.dist else "an installed package"
    reason = f"{type(error).__name__}: {one_line(error)}"
    return f"{package}: its entry point {point.name} = {point.value} cannot be loaded ({reason}); mend or uninstall it"


FOLDER = Path(__file__).parents[2]
NAMES = ("configs", "flows", "frameworks", "serving", "tasks", "wings")


def require_own_packages() -> None:
    """Check that no other module is imported in place of one of ours, such as a `tasks.py` in the user's folder.

    Raises:
        ConfigError: with the file that would be imported.
    """
    for name in NAMES:
        spec, own = find_spec(name), FOLDER / name / "__init__.py"
        if own.is_file() and spec is not None and spec.origin and not own.samefile(spec.origin):
            raise ConfigError(
                f"{spec.origin}: Python imports it in place of onnx-gauntlet's package {name!r}. "
                "Fix: rename it, or start from a folder without it"
            )
