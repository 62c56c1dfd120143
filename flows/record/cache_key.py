"""The cache key: a digest of inputs by content, configuration, code, Python, packages and processor instructions."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MethodType
from typing import Any

import tasks
from gauntlet.core.artifact import Artifact, sha256_of
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import points
from gauntlet.core.stage import traits_of
from gauntlet.core.user_code import code_files, installed_packages, module_file
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.resources import has_gpu
from gauntlet.targets import environments

OUR_PACKAGES = ("tasks", "gauntlet", "frameworks", "wings")
IN_THE_RECORD = {"drawing", "framework", "function", "section", "shipping", "store"}
"""The parts that no result depends on: of a framework, the configuration names the class that a stage uses."""
LOOK_UP = re.compile(r'\b(?:kinds|required)\("(\w+)"')
IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|.*)|import (.*))", re.MULTILINE)


def cache_key(
    function: Callable[..., Any],
    config: Any,
    inputs: Mapping[str, Any],
    here: Processor | None = None,
    *,
    gpu: bool | None = None,
) -> str:
    """Return the digest that names a piece of work.

    It is the same on every machine with the same Python and packages and, unless the stage holds on any processor, the
    same instructions; `here` is by default this machine's processor. A training with
    `device: auto` has another key where there is a GPU; `gpu` says so, by default as it is on this machine.
    """
    parts = {
        "stage": f"{function.__module__}.{function.__qualname__}",
        "config": canonical_json(config),
        "inputs": canonical_json(inputs),
        "python": platform.python_version(),
        **code_digests(function.__module__, *sorted({*modules_of(config)})),
    }
    if not traits_of(function).any_processor:
        here = here or Processor.current()
        parts["processor"] = [here.architecture, *here.instructions]
    if elsewhere := sorted({t.environment for t in getattr(config, "targets", ()) if t.environment}):
        parts["environments"] = [[name, *environments.packages(name)] for name in elsewhere]
    if "auto" in (getattr(part, "device", None) for part in (config, getattr(config, "fine_tune", None))):
        parts["gpu"] = has_gpu() if gpu is None else gpu  # another device gives other weights
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def canonical_json(value: Any) -> Any:
    """Return a JSON value that is equal exactly when the contents are equal.

    A function, such as a configuration's `files`, counts as what it returns now.

    Raises:
        TypeError: for a value without comparable content, such as a session or a model in memory.
    """
    match value:
        case Artifact():
            return {"name": value.name, "sha256": value.sha256}
        case Frozen():
            return {"type": type(value).__name__, "value": json.loads(value.model_dump_json())}
        case Path():
            return {"name": value.name, "sha256": sha256_of([value]) if value.is_file() else "missing"}
        case Mapping():
            # Pairs, because order matters: the first model of a race is the reference.
            return [[str(key), canonical_json(item)] for key, item in value.items()]
        case tuple() | list():
            return [canonical_json(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case MethodType():
            return canonical_json(value())
    raise TypeError(f"a stage takes values and artifacts, not {type(value).__name__}")


def modules_of(config: Any) -> Iterator[str]:
    """Yield the modules of the classes in a configuration, and targets' engines: a kind's code is the stage's, too."""
    match config:
        case Frozen():
            yield from (type(config).__module__, *filter(None, [getattr(type(config), "engine", None)]))
            for name in type(config).model_fields:
                yield from modules_of(getattr(config, name))
        case tuple():
            for item in config:
                yield from modules_of(item)


@lru_cache
def code_digests(*modules: str) -> dict[str, dict[str, str]]:
    """Return the digests of modules and of all our modules that they import, and the versions of what they need.

    Of other people's modules, also those that bring a kind, these are the digests of all files that they need.
    """
    code: dict[str, str] = {}
    packages: set[str] = set()
    pending, kinds = [*modules], {*modules, *(point.module for point in points())}
    while pending:
        name = pending.pop()
        if name in code:
            continue
        if name.partition(".")[0] not in OUR_PACKAGES:
            code[name] = sha256_of([*code_files(Path(os.devnull), f"{name}:any")])
            continue
        module_code = _read(name)
        if module_code is None:  # not a module but a name in one, or a package without code
            continue
        code[name], imports = module_code
        for imported in imports:
            ours = imported.split(".")[0] in OUR_PACKAGES
            pending += [imported] if ours or imported in kinds else []
            packages |= set() if ours else {imported.split(".")[0]}
    return {"code": code, "packages": _versions(packages)}


@lru_cache
def _read(module: str) -> tuple[str, frozenset[str]] | None:
    """Return the digest of one of our modules, and what it imports or finds by `kinds` or `required`."""
    path = module_file(Path(tasks.__file__).parent.parent, module)
    if path is None:
        return None
    source = path.read_text("utf-8")
    parts = {*LOOK_UP.findall(source)} - IN_THE_RECORD
    brought = {point.module for point in (points() if parts else ()) if point.name.partition(".")[0] in parts}
    return hashlib.sha256(source.encode()).hexdigest(), imports_in(source) | brought


def imports_in(source: str) -> frozenset[str]:
    """Return what one of our modules imports, as `imported_modules` does, in a twentieth of its time."""
    modules: set[str] = set()
    for base, names, alone in IMPORT.findall(source):
        words = re.findall(r"[\w.]+", re.sub(r"#.*| as \w+", "", names or alone))
        modules |= {base, *(f"{base}.{word}" for word in words)} if base else {*words}
    return frozenset(modules)


def _versions(modules: set[str]) -> dict[str, str]:
    """Return the versions of the packages that provide the modules, and of all that these require."""
    pending = [name for module in modules - sys.stdlib_module_names for name in installed_packages().get(module, [])]
    versions: dict[str, str] = {}
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name not in versions:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # it is for another platform
                versions[name], required = _version_and_needs(name)
                pending += required
    return versions


@lru_cache
def _version_and_needs(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a package's version, and the names of the packages that it requires, without those of its extras."""
    package = importlib.metadata.distribution(name)
    required = [text for text in package.requires or () if "extra ==" not in text]
    return package.version, tuple(re.split(r"[^\w.-]", text)[0] for text in required)
