"""Images that stay in the user's folder: a list of files, each decoded when it is needed."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays, read_arrays
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds
from gauntlet.core.workspace import steps_log
from gauntlet.datasets.directory_index import DirectoryIndex, printable_name
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.splits import NPZ_ERRORS, SkippedFile
from gauntlet.images.decoding import decode_image
from gauntlet.images.preprocessing import preprocess

SUFFIX = ".files.npz"
THREADS = min(4, os.cpu_count() or 1)

Fingerprint = Any
"""Of an image, by what an installed package brings as `copies.images`, to find almost equal ones."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ImageFileSplit:
    """Images in files below `root`: names, labels and SHA-256 digests are in memory, pixels are not.

    `pixel_digests` and `fingerprints` are known only in the data stage, which has just read the pixels.
    """

    root: Path
    files: tuple[str, ...]
    labels: Array | None
    digests: tuple[bytes, ...]
    transform: ImageTransform
    pixel_digests: tuple[bytes, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Decode some images; raise StageError naming the file if one is missing or has changed."""
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices.tolist()
        return {self.transform.name: np.stack(map_in_threads(self._input, chosen))}

    def _input(self, index: int) -> Array:
        path, how = self.root / self.files[index], self.transform.how
        fix = "run again with --fresh, so that the data stage reads the folder again"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StageError(f"{path}: no longer readable ({error.strerror}). Fix: restore it, or {fix}") from error
        if hashlib.sha256(content).digest() != self.digests[index]:
            raise StageError(f"{path}: changed after the data stage read it. Fix: {fix}")
        return preprocess(decode_image(content, len(how.mean)), how, self.transform.layout)

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file with the names of the files, and the labels; the images stay in place."""
        path, labels = folder / f"{name}{SUFFIX}", {} if self.labels is None else {"labels": self.labels}
        files, digests = np.array(self.files, np.str_), np.frombuffer(b"".join(self.digests), np.uint8).reshape(-1, 32)
        about = {"root": str(self.root), "recipe": self.transform.model_dump_json()}
        np.savez_compressed(path, allow_pickle=False, **about, files=files, sha256=digests, **labels)
        return path

    @classmethod
    def load(cls, path: Path) -> "ImageFileSplit":
        """Read what `save` wrote; raise StageError if the file is damaged."""
        try:
            arrays = read_arrays(path)
            files, digests = tuple(arrays["files"].tolist()), tuple(row.tobytes() for row in arrays["sha256"])
            transform = ImageTransform.model_validate_json(str(arrays["recipe"]))
            return cls(Path(str(arrays["root"])), files, arrays.get("labels"), digests, transform)
        except NPZ_ERRORS as error:  # pydantic's ValidationError is a ValueError
            raise StageError(f"{path}: not an image list of the data stage ({error})") from error


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply the function to all items in a few threads; decoding releases the GIL."""
    with warnings.catch_warnings(), ThreadPoolExecutor(THREADS) as pool:
        warnings.filterwarnings("ignore", module=r"PIL\.")  # about odd metadata; errors are raised
        return list(pool.map(function, items))


CHUNK = 256
"""Files between two steps of the progress bar."""


class ScannedImage(NamedTuple):
    """A usable image file: SHA-256 digests of its bytes and of its pixels, its size in pixels, and its fingerprint."""

    split: str
    label: int
    file: str
    digest: bytes
    pixel_digest: bytes
    height: int
    width: int
    fingerprint: Fingerprint


def scan(root: Path, index: DirectoryIndex, channels: int) -> tuple[list[ScannedImage], list[SkippedFile]]:
    """Decode all files of the index; return the usable images and the skipped files."""
    images, skipped, total = [], list(index.skipped), len(index.files)
    for start in range(0, total, CHUNK):
        chunk = index.files[start : start + CHUNK]
        results = map_in_threads(partial(_examine, root, channels), [file for _, _, file in chunk])
        for (split, name, file), result in zip(chunk, results, strict=True):
            if isinstance(result, str):
                skipped.append(SkippedFile(file=printable_name(file), reason=result))
            else:
                images.append(ScannedImage(split, index.classes.index(name), file, *result))
        done = start + len(chunk)
        steps_log.info("file %d/%d", done, total, extra={"done": done, "total": total, "unit": "file", "metrics": {}})
    return images, skipped


def _examine(root: Path, channels: int, name: str) -> tuple[bytes, bytes, int, int, Fingerprint] | str:
    """Return the digests of a file and of its pixels, height, width and fingerprint, or why it cannot be used."""
    path = root / name
    if not path.is_file():
        return "not a file" if path.exists() else "a broken link"
    try:
        content = path.read_bytes()
        pixels = decode_image(content, channels)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except StageError as error:
        return str(error)
    shape = str(pixels.shape).encode()
    digest = hashlib.sha256(shape + pixels.tobytes()).digest()
    return hashlib.sha256(content).digest(), digest, pixels.shape[0], pixels.shape[1], fingerprint(pixels)


def fingerprint(pixels: Array) -> Fingerprint:
    """Return the fingerprint of one image, shape (height, width, channels); None where nothing installed makes any."""
    return kinds("copies")["images"].fingerprint(pixels) if kinds("copies") else None
