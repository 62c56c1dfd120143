"""What makes two pieces of work the same: inputs by content, configuration, code, packages, and the processor."""

import ast
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tasks
from flows.environment import INSTRUCTIONS, processor
from tasks.artifact import Artifact, digest_of
from tasks.frozen import Frozen
from tasks.runtime.processor import Processor

OURS = ("tasks",)
ANYWHERE = ("tasks.data", "tasks.train", "tasks.prune")
"""Stages whose result is as good on another processor. What all others find is true of this one's kernels alone: INT8
sums that saturate, a layout, a pace."""


def work_key(
    function: Callable[..., Any], config: Any, inputs: Mapping[str, Any], here: Processor | None = None
) -> str:
    """Return the digest that names a piece of work.

    It is the same on every machine with the same packages and, save for `ANYWHERE`, the same instructions.

    Args:
        function: the stage.
        config: its configuration.
        inputs: its inputs, by name.
        here: where it is done; by default, on this machine.
    """
    parts = {
        "stage": f"{function.__module__}.{function.__qualname__}",
        "config": canonical(config),
        "inputs": canonical(inputs),
        **code_of(function.__module__),
    }
    if function.__module__ not in ANYWHERE:
        here = here or this_processor()
        parts["processor"] = [here.architecture, sorted(here.flags.intersection(INSTRUCTIONS))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@lru_cache
def this_processor() -> Processor:
    """Return this machine's, with the extensions that Linux lists for it, on Arm as well."""
    return Processor(platform.machine(), frozenset(processor()[1]))


def canonical(value: Any) -> Any:
    """Return a JSON value that is equal exactly when the contents are.

    Raises:
        TypeError: for a value that has no content to compare, such as a session or a model in memory.
    """
    match value:
        case Artifact():
            return {"name": value.name, "sha256": value.sha256}
        case Frozen():
            return {"type": type(value).__name__, "value": json.loads(value.model_dump_json())}
        case Path():
            return {"name": value.name, "sha256": digest_of([value]) if value.is_file() else "missing"}
        case Mapping():
            # Pairs, because the order can matter: the first model of a race is the reference.
            return [[str(key), canonical(item)] for key, item in value.items()]
        case tuple() | list():
            return [canonical(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a stage takes values and artifacts, not {type(value).__name__}")


@lru_cache
def code_of(module: str) -> dict[str, dict[str, str]]:
    """Return the digests of the module and of all our modules that it imports, and the versions of other packages."""
    code: dict[str, str] = {}
    packages: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in code:
            continue
        found = _read(name)
        if found is None:  # not a module but something in one, or a package without code
            continue
        code[name], imports = found
        for imported in imports:
            if imported.split(".")[0] in OURS:
                pending.append(imported)
            else:
                packages.add(imported.split(".")[0])
    return {"code": code, "packages": _versions(packages)}


@lru_cache
def _read(module: str) -> tuple[str, frozenset[str]] | None:
    """Return the digest of one of our modules, and what it imports."""
    path = _file(module)
    if path is None:
        return None
    source = path.read_bytes()
    return hashlib.sha256(source).hexdigest(), _imports(source)


def _file(module: str) -> Path | None:
    """Return the source file of one of our modules."""
    stem = Path(tasks.__file__).parent.parent.joinpath(*module.split("."))
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


def _imports(source: bytes) -> frozenset[str]:
    """Return every module that the source names in an import, at any depth; `from a import b` may mean a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module.split(".")[0] in OURS:
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _versions(modules: set[str]) -> dict[str, str]:
    names = {module: installed_packages().get(module, []) for module in modules - sys.stdlib_module_names}
    return {name: importlib.metadata.version(name) for found in names.values() for name in sorted(set(found))}


@lru_cache
def installed_packages() -> Mapping[str, list[str]]:
    """Return the names of the distributions that bring each top-level module; to read them all takes a second."""
    return importlib.metadata.packages_distributions()
