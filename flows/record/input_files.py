"""The user's files among the inputs of a stage: what they hold, and whether that changed while the stage read them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

from gauntlet.core.artifact import sha256_of
from gauntlet.datasets.directory_index import DirectoryState


@dataclass(frozen=True)
class FileContent:
    """The content of a file or folder, and what else the system changes with any write to it or renaming of it."""

    sha256: str
    status: tuple[int, ...] = ()
    """Number of the file, size, time of the content, and time of the last change, in ns; none of a folder."""


def input_files(inputs: Any) -> dict[str, FileContent]:
    """Return the content of each of the user's files by path. A function of files counts as what it returns now."""
    match inputs:
        case Path():
            return {str(inputs): _content(inputs)}
        case DirectoryState():
            return {inputs.path: FileContent(inputs.sha256)}
        case Mapping():
            return input_files(tuple(inputs.values()))
        case tuple() | list():
            return {path: content for each in inputs for path, content in input_files(each).items()}
        case MethodType() | partial():
            return input_files(inputs())
    return {}


def changed_files(before: Mapping[str, FileContent], after: Mapping[str, FileContent]) -> tuple[str, ...]:
    """Return the paths whose content differs, or which are in one of both alone."""
    return tuple(path for path in sorted({*before, *after}) if _sha256(before, path) != _sha256(after, path))


def _sha256(files: Mapping[str, FileContent], path: str) -> str:
    return files[path].sha256 if path in files else ""


def _content(path: Path) -> FileContent:
    if not path.is_file():
        return FileContent("missing")
    status = os.stat(path)  # noqa: PTH116 - before the content is read, so that a write in between counts
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return FileContent(sha256_of([path]), (status.st_ino, status.st_size, *times))
