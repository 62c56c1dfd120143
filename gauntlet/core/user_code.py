"""A user's function, `module:function`, with the source of all files that it needs."""

import ast
import importlib
import importlib.metadata
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen

PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _checked(name: str) -> str:
    if not PATTERN.fullmatch(name):
        raise ValueError("write module:function, for example nets:make, or package.nets:make")
    return name


FunctionName = Annotated[str, AfterValidator(_checked)]
"""A user's function: `module:function`."""


class UserCode(Frozen):
    """A function and its source files, path in the user's folder -> text; none for an installed package."""

    name: FunctionName
    files: dict[str, str]

    @classmethod
    def read(cls, folder: Path, name: str) -> Self:
        """Read the function's files; `StageError` when one cannot be read."""
        texts = {}
        for path in source_files(folder, name):
            try:
                texts[path.relative_to(folder).as_posix()] = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise StageError(f"{path}: cannot be read as text: {error}") from error
        return cls(name=name, files=texts)

    def function(self) -> Callable[..., Any]:
        """Import the function; `StageError` when it does not exist, or importing it fails."""
        module, _, function = self.name.partition(":")
        _LOADED.install(self.files)
        try:
            found = getattr(importlib.import_module(module), function, None)
        except Exception as error:  # the user's code may raise anything
            where = f"its files: {', '.join(self.files)}" if self.files else "no such file in the folder to import from"
            reason = f"{type(error).__name__}: {error} ({where})"
            raise StageError(f"{self.name}: {module} cannot be imported: {reason}") from error
        if not callable(found):
            raise StageError(f"{self.name}: {module} has no function {function!r}")
        return found  # type: ignore[no-any-return]


def source_files(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the files in the folder that define or import the function, at any depth; none for a package."""
    modules = [name.partition(":")[0]]
    found: dict[str, Path] = {}
    while modules:
        module = modules.pop()
        path = module_file(folder, module)
        if module in found or path is None:
            continue
        found[module] = path
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        with suppress(SyntaxError, ValueError):  # importing it reports the error
            modules += imported_modules(path.read_bytes(), package)
        modules += [module.rpartition(".")[0]] if "." in module else []  # a package's own __init__.py
    return tuple(sorted(found.values()))


def code_files(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the files that a function depends on: its source, or the metadata of the package that has it."""
    return source_files(folder, name) or _package_metadata(name)


def _package_metadata(name: str) -> tuple[Path, ...]:
    root = name.partition(":")[0].partition(".")[0]
    names = importlib.metadata.packages_distributions().get(root, [])
    files = [file for each in names for file in importlib.metadata.files(each) or [] if file.name == "METADATA"]
    return tuple(Path(str(file.locate())) for file in files[:1])


def module_file(folder: Path, module: str) -> Path | None:
    """Return the source file of a module in a folder of modules, or None."""
    stem = folder.joinpath(*module.split("."))
    return next((p for p in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")) if p.is_file()), None)


def imported_modules(source: bytes, package: str = "") -> frozenset[str]:
    """Return every module that a source may import; `package` is its own. `SyntaxError` when it is not Python."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package and node.level else []
            above = above[: len(above) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}".removeprefix(".") for alias in node.names)}
    return frozenset(found - {""})


class _ImportedModules:
    """The user modules that this process has imported. Files of the same names replace the older ones."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.folders: list[str] = []

    def install(self, files: Mapping[str, str]) -> None:
        """Make the files importable; `StageError` when a name belongs to a module of this process."""
        if any(self.files.get(name, text) != text for name, text in files.items()):
            for name in {_module(file) for file in self.files}:
                sys.modules.pop(name, None)
            sys.path[:] = [path for path in sys.path if path not in self.folders]
            self.files, self.folders = {}, []
        for file in sorted(files.keys() - self.files.keys()):
            if _module(file) in sys.modules:
                raise StageError(f"{file}: the name {_module(file)!r} is taken by a module of this program; rename it")
        if files.keys() <= self.files.keys():
            return
        self.files |= files
        folder = _unpacked(tuple(sorted(files.items()))).name
        if folder not in self.folders:
            self.folders.append(folder)
            sys.path.insert(0, folder)
            importlib.invalidate_caches()


_LOADED = _ImportedModules()


@cache  # the folder lives as long as this process, because a function may import when it is called
def _unpacked(files: tuple[tuple[str, str], ...]) -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="gauntlet-code-")
    for name, text in files:
        path = Path(folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
