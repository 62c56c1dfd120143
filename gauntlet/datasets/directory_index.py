"""List a folder of images on disk: which file belongs to which class of which split."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.splits import SPLITS, SkippedFile

SYSTEM_FILES = ("Thumbs.db", "ehthumbs.db", "desktop.ini", "__MACOSX", "Icon\r", "$RECYCLE.BIN")
"""What Windows and macOS leave beside a user's files, apart from names that begin with a dot."""
LAYOUT = "expected train/<class>/<image> and test/<class>/<image> (also validation, calibration), or <class>/<image>"


class DirectoryState(Frozen):
    """Identifies a folder without reading its files: its path, and a digest of all names, sizes and times."""

    path: str
    files: int = Field(ge=0)
    sha256: str


@dataclass(frozen=True)
class DirectoryIndex:
    """The classes of a folder and its files, each as (split, class, path); without splits, the split is `""`."""

    splits: tuple[str, ...]
    classes: tuple[str, ...]
    files: tuple[tuple[str, str, str], ...]
    skipped: tuple[SkippedFile, ...]


def directory_state(root: Path) -> DirectoryState:
    """Return the state of the folder, behind links, too; a missing or unreadable folder has no files."""
    digest = hashlib.sha256()
    folders, files, _ = _walk(root, follow=True)
    for folder in sorted(map(os.fsencode, folders)):  # an empty one is a class, too
        digest.update(folder + b"\0\n")
    for file in files:
        path = root / file
        stat = path.stat() if path.is_file() else path.lstat()
        digest.update(os.fsencode(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n"))
    return DirectoryState(path=printable_name(os.fspath(root.resolve())), files=len(files), sha256=digest.hexdigest())


def index_directory(root: Path) -> DirectoryIndex:
    """List the folder's visible files; raise StageError if it is missing or has other splits."""
    if not root.is_dir():
        raise StageError(f"{root}: no such folder; {LAYOUT}")
    folders, files, skipped = _walk(root)
    children: dict[str, set[str]] = {}
    for folder in folders:
        children.setdefault(folder.parts[0], set()).update(folder.parts[1:2])
    if not folders:
        raise StageError(f"{root}: no class folders in it; {LAYOUT}")
    role = "validation" if "test" in children else "test"
    roles = {name: role for name in ("val", "valid") if children.get("train") and children.get(name)}
    children = {roles.get(name, name): below for name, below in children.items()}
    splits = tuple(name for name in SPLITS if children.get(name))
    others = sorted(map(printable_name, children.keys() - set(splits))) if splits else []
    if others:
        raise StageError(
            f"{root}: next to the splits {list(splits)} there are folders that are not splits with class folders: "
            f"{others[:5]}; {LAYOUT}"
        )
    if splits and "test" not in splits:
        raise StageError(f"{root}: found {list(splits)}, but no 'test'; {LAYOUT}")
    depth = 2 if splits else 1
    indexed = []
    for file in files:
        if len(file.parts) <= depth:
            skipped.append(_skipped(file, "not in a class folder"))
        else:
            split = roles.get(file.parts[0], file.parts[0]) if splits else ""
            indexed.append((split, file.parts[depth - 1], str(file)))
    classes = {name for split in splits for name in children[split]} if splits else set(children)
    return DirectoryIndex(splits, tuple(sorted(classes)), tuple(indexed), tuple(skipped))


def index_images(root: Path) -> DirectoryIndex:
    """List all files below the folder as one set without classes; raise StageError if it is missing."""
    if not root.is_dir():
        raise StageError(f"{root}: no such folder; expected a folder of images")
    _, files, skipped = _walk(root)
    return DirectoryIndex((), ("",), tuple(("", "", str(file)) for file in files), tuple(skipped))


def printable_name(name: str) -> str:
    """Return a file name as valid text, even if its bytes are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_visible(name: str) -> bool:
    """Return whether a file or folder is the user's, and not hidden."""
    return not name.startswith(".") and name not in SYSTEM_FILES


def _walk(root: Path, *, follow: bool = False) -> tuple[list[Path], list[Path], list[SkippedFile]]:
    """Return the folders and the files below the root, sorted, as relative paths, and what is skipped.

    Each folder that links lead to is read once if they are to be followed, and not at all otherwise.
    """
    followed: set[Path] = set()
    folders: list[Path] = []
    files: list[Path] = []
    skipped: list[SkippedFile] = []

    def skip_unreadable(error: OSError) -> None:
        folder = Path(error.filename).relative_to(root)
        skipped.append(_skipped(folder, f"the folder cannot be read: {error.strerror}"))

    for place, folder_names, file_names in os.walk(root, onerror=skip_unreadable, followlinks=follow):
        here = Path(place).relative_to(root)
        visible = sorted((name for name in folder_names if is_visible(name)), key=os.fsencode)
        linked = {name: (root / here / name).resolve() for name in visible if (root / here / name).is_symlink()}
        links = [name for name, target in linked.items() if not follow or target in followed]
        followed |= {*linked.values()}
        skipped += [_skipped(here / name, "a link to a folder; not followed") for name in links]
        folder_names[:] = [name for name in visible if name not in links]
        folders += [here / name for name in folder_names]
        files += [here / name for name in file_names if is_visible(name)]
    return folders, sorted(files, key=lambda file: [os.fsencode(part) for part in file.parts]), skipped


def _skipped(file: Path, reason: str) -> SkippedFile:
    return SkippedFile(file=printable_name(os.fspath(file)), reason=reason)
