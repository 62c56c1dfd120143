"""A folder of pictures as it lies on disk: which file belongs to which class of which split."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.splits import SPLITS, SkippedFile

WANTED = "train/<class>/<picture> and test/<class>/<picture> (also validation, calibration), or <class>/<picture>"


class DirectoryState(Frozen):
    """What identifies a folder without reading its files: its place, and one digest of all names, sizes and times."""

    path: str
    files: int = Field(ge=0)
    sha256: str


@dataclass(frozen=True)
class DirectoryIndex:
    """Every file of the folder, by split (`""` where it is not divided) and class, and those that have no class."""

    files: dict[str, dict[str, list[str]]]
    strays: tuple[SkippedFile, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the class folders of all splits, sorted."""
        return tuple(sorted({name for classes in self.files.values() for name in classes}))

    @property
    def total(self) -> int:
        """The number of files that have a class."""
        return sum(len(files) for classes in self.files.values() for files in classes.values())


def directory_state(root: Path) -> DirectoryState:
    """Return the state of the folder; one that is missing or unreadable has no files."""
    digest, count = hashlib.sha256(), 0
    for entry in _walk(root, root):
        if isinstance(entry, SkippedFile) or entry.is_dir():
            continue
        stat = entry.stat() if entry.is_file() else entry.stat(follow_symlinks=False)
        digest.update(os.fsencode(f"{_below(root, entry.path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))
        count += 1
    return DirectoryState(path=printable_name(os.fspath(root.resolve())), files=count, sha256=digest.hexdigest())


def index_directory(root: Path) -> DirectoryIndex:
    """List the folder. Files and folders whose name begins with a dot are not part of the data.

    Raises:
        StageError: when it is missing, or is divided into other splits than this project knows.
    """
    if not root.is_dir():
        raise StageError(f"{root}: no such folder; wanted is {WANTED}")
    folders: dict[str, set[str]] = {}
    files: list[str] = []
    strays: list[SkippedFile] = []
    for entry in _walk(root, root):
        if isinstance(entry, SkippedFile):
            strays.append(entry)
            continue
        place = _below(root, entry.path)
        if entry.is_dir():
            parts = Path(place).parts
            folders.setdefault(parts[0], set()).update(parts[1:2])
        else:
            files.append(place)
    if not folders:
        raise StageError(f"{root}: no class folders in it; wanted is {WANTED}")
    found = _empty_tree(root, folders)
    depth = 1 if "" in found else 2
    for place in files:
        above = Path(place).parts[:-1]
        if len(above) < depth:
            strays.append(SkippedFile(file=printable_name(place), reason="lies in no class folder"))
        else:
            found["" if depth == 1 else above[0]][above[depth - 1]].append(place)
    return DirectoryIndex(found, tuple(strays))


def printable_name(name: str) -> str:
    """Return a file's name as text that can be written anywhere, also where its bytes are no text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _empty_tree(root: Path, folders: dict[str, set[str]]) -> dict[str, dict[str, list[str]]]:
    """Decide whether the folders are splits or classes."""
    named = [name for name in SPLITS if folders.get(name)]
    if not named:
        return {"": {name: [] for name in sorted(folders)}}
    others = sorted(map(printable_name, folders.keys() - set(named)))
    if others:
        raise StageError(
            f"{root}: beside the splits {named} there are folders that are no splits with class folders in them: "
            f"{others[:5]}; wanted is {WANTED}"
        )
    if "test" not in named:
        raise StageError(f"{root}: there are {named}, but no 'test'; wanted is {WANTED}")
    return {name: {label: [] for label in sorted(folders[name])} for name in named}


def _walk(folder: Path | str, root: Path) -> Iterator["os.DirEntry[str] | SkippedFile"]:
    """Yield all that is in a folder below the root, sorted, each folder before its content."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: os.fsencode(e.name))
    except OSError as error:
        yield SkippedFile(
            file=printable_name(_below(root, folder)), reason=f"the folder cannot be read: {error.strerror}"
        )
        return
    for entry in found:
        if entry.is_dir() and entry.is_symlink():
            yield SkippedFile(file=printable_name(_below(root, entry.path)), reason="a link to a folder; not followed")
            continue
        yield entry
        if entry.is_dir():
            yield from _walk(entry.path, root)


def _below(root: Path, path: Path | str) -> str:
    """Return a path that begins with the root, without it."""
    return os.fspath(path)[len(os.path.join(root, "")) :] or "."  # noqa: PTH118 - called for every file
