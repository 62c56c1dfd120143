"""A user's function, `module:function`, with the source of all files that it needs."""

import ast
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen

PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MODULE = re.compile(r"(\w+)(?:/[^,]*|\.[\w-]+)?\.(?:py|so|pyd),")
"""A line of a package's `RECORD`: the top-level module, and a file of its source or its compiled code."""
MAX_NAME, MAX_TEXT_BYTES = 100, 1 << 20
"""Of a text file that a user's code names and reads."""


def _checked(name: str) -> str:
    if not PATTERN.fullmatch(name):
        raise ValueError("write module:function, for example nets:make, or package.nets:make")
    return name


FunctionName = Annotated[str, AfterValidator(_checked)]
"""A user's function: `module:function`."""


class UserFunction(Frozen):
    """A user's function, and the folder of its module."""

    function: FunctionName = Field(description="module:function")
    code_folder: Path = Field(Path(), description="folder of the module")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the function."""
        return code_files(self.code_folder, self.function)

    def load(self) -> Callable[..., Any]:
        """Import the function; see `UserCode`."""
        return UserCode.read(self.code_folder, self.function).function()


FunctionOrName = Annotated[
    UserFunction,
    BeforeValidator(
        lambda value: {"function": value} if isinstance(value, str) else value,
        json_schema_input_type=UserFunction | str,
    ),
]
"""A user's function; as text, `module:function` of the working directory."""


class UserCode(Frozen):
    """A function, its source files and the text files that they name; none for an installed package.

    `files` are path in the user's folder -> text.
    """

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
            loaded = getattr(importlib.import_module(module), function, None)
        except Exception as error:  # the user's code may raise anything
            where = f"its files: {', '.join(self.files)}" if self.files else "no such file in the folder to import from"
            reason = f"{type(error).__name__}: {error} ({where})"
            raise StageError(f"{self.name}: {module} cannot be imported: {reason}") from error
        if not callable(loaded):
            raise StageError(f"{self.name}: {module} has no function {function!r}")
        return loaded  # type: ignore[no-any-return]


def source_files(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the files in the folder that define the function, at any depth; none for a package.

    These are the modules that it imports or names, and the text files that a string in them names.
    """
    return tuple(sorted(_imported(folder, [name.partition(":")[0]])[0]))


def code_files(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the files that a function depends on, wherever they are.

    These are the source of its module and of all that it imports, at any depth; of an installed package, the metadata,
    which has its version.
    """
    files: set[Path] = set()
    pending, known = [(folder, {name.partition(":")[0]})], set(sys.stdlib_module_names)
    while pending:
        sources, elsewhere = _imported(*pending.pop())
        files |= sources
        for root in {module.partition(".")[0] for module in elsewhere} - known:
            known.add(root)
            (installed, is_local), place = _installed_files(root), _folder_of(root)
            files |= installed
            if place is not None and (is_local or not installed):
                pending.append((place, {module for module in elsewhere if module.partition(".")[0] == root}))
    return tuple(sorted(files))


def _imported(folder: Path, modules: Iterable[str]) -> tuple[set[Path], set[str]]:
    """Return the files in the folder that define or import modules, at any depth, and which modules are elsewhere."""
    pending = list(modules)
    files: dict[str, Path] = {}
    elsewhere: set[str] = set()
    while pending:
        module = pending.pop()
        path = module_file(folder, module)
        if path is None and module_file(folder, module.partition(".")[0]) is None:
            elsewhere.add(module)
        if module in files or path is None:
            continue
        files[module] = path
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        with suppress(SyntaxError, ValueError):  # importing it reports the error
            source = path.read_bytes()
            pending += imported_modules(source, package)
            named = _texts(source)
            if b"import_module" in source:
                pending += [name for name in named if name.isidentifier() and module_file(folder, name)]
            files |= {name: path.parent / name for name in named if _is_text_in(path.parent, name)}
        pending += [module.rpartition(".")[0]] if "." in module else []  # a package's own __init__.py
    return set(files.values()), elsewhere


@cache
def installed_packages() -> Mapping[str, list[str]]:
    """Return the names of the distributions that provide each top-level module.

    It reads their records in a third of the time of `packages_distributions`, which looks for each file.
    """
    provided: dict[str, list[str]] = {}
    for brought in importlib.metadata.distributions():
        lines = (brought.read_text("RECORD") or "").splitlines()
        written = {match[1] for line in lines if (match := MODULE.match(line))}
        for module in (brought.read_text("top_level.txt") or "").split() or written:
            provided.setdefault(module, []).append(brought.name)
    return provided


@cache
def _installed_files(root: str) -> tuple[frozenset[Path], bool]:
    """Return the metadata of the distributions that install a top-level module, and whether one is of a local folder.

    Such a folder's code may change without its version (PEP 610).
    """
    names = installed_packages().get(root, [])
    files = [Path(str(file.locate())) for name in names for file in importlib.metadata.files(name) or []]
    is_local = any(file.name == "direct_url.json" and b'"dir_info"' in file.read_bytes() for file in files)
    return frozenset(file for file in files if file.name == "METADATA"), is_local


def _folder_of(root: str) -> Path | None:
    """Return the folder from which a top-level module is imported, or None where it has no source."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(root)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin).parents[1 if spec.submodule_search_locations is not None else 0]
    return None


def module_file(folder: Path, module: str) -> Path | None:
    """Return the source file of a module in a folder of modules, or None."""
    stem = folder.joinpath(*module.split("."))
    return next((p for p in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")) if p.is_file()), None)


def _texts(source: bytes) -> list[str]:
    """Return the short string constants of a source, such as the names of files that it reads."""
    nodes = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return sorted({text for text in nodes if isinstance(text, str) and 0 < len(text) <= MAX_NAME})


def _is_text_in(folder: Path, name: str) -> bool:
    """Return whether a name is that of a text file in a folder that may travel with the code."""
    path = Path(name)
    if path.suffix in ("", ".py") or path.is_absolute() or ".." in path.parts:
        return False
    try:
        return (folder / path).stat().st_size <= MAX_TEXT_BYTES and bool((folder / path).read_text("utf-8"))
    except (OSError, ValueError):  # no such file, or one of bytes
        return False


def imported_modules(source: bytes, package: str = "") -> frozenset[str]:
    """Return every module that a source may import; `package` is its own. `SyntaxError` when it is not Python."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package and node.level else []
            above = above[: len(above) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
            modules |= {base, *(f"{base}.{alias.name}".removeprefix(".") for alias in node.names)}
    return frozenset(modules - {""})


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
                sys.modules.pop(_root(name), None)
            sys.path[:] = [path for path in sys.path if path not in self.folders]
            self.files, self.folders = {}, []
        for file in sorted(files.keys() - self.files.keys()):
            root = _root(_module(file))
            own = any(_root(_module(other)) == root for other in self.files)
            if _module(file) in sys.modules or (root in sys.modules and not own):
                raise StageError(f"{file}: the name {root!r} is taken by a module of this program; rename it")
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


def _root(module: str) -> str:
    return module.partition(".")[0]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
