"""Images that stay in the user's folder: a list of files, each decoded when it is needed."""

import base64
import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.workspace import steps_log
from gauntlet.datasets.directory_index import DirectoryIndex, printable_name
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.near_duplicates import Fingerprint, fingerprint
from gauntlet.datasets.splits import SkippedFile
from gauntlet.datasets.truth import padded_boxes
from gauntlet.images.decoding import decode_image
from gauntlet.images.preprocessing import preprocess

SUFFIX = ".files.json"
THREADS = min(4, os.cpu_count() or 1)

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
        """Write the list of files; the images stay in place."""
        path = folder / f"{name}{SUFFIX}"
        content = {
            "root": str(self.root),
            "recipe": self.transform.model_dump(mode="json"),
            "files": self.files,
            **_listed(self.labels),
            "sha256": [digest.hex() for digest in self.digests],
        }
        path.write_text(json.dumps(content, indent=0), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> "ImageFileSplit":
        """Read what `save` wrote; raise StageError if the file is damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                Path(content["root"]),
                tuple(content["files"]),
                _labels(content),
                tuple(map(bytes.fromhex, content["sha256"])),
                ImageTransform.model_validate(content["recipe"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StageError(f"{path}: not an image list of the data stage ({error})") from error


def _listed(labels: Array | None) -> dict[str, Any]:
    """Return labels as JSON values: classes, masks as compressed bytes, or each image's objects without the padding."""
    if labels is None or labels.ndim == 1:
        return {"labels": None if labels is None else labels.tolist()}
    if labels.dtype == np.uint8:
        packed = base64.b64encode(zlib.compress(labels.tobytes(), 1)).decode()
        return {"labels": None, "masks": packed, "size": labels.shape[1:]}
    return {"labels": None, "boxes": [rows[rows[:, 4] >= 0].tolist() for rows in labels]}


def _labels(content: Mapping[str, Any]) -> Array | None:
    if "boxes" in content:
        return padded_boxes([np.array(rows, np.float32).reshape(-1, 6) for rows in content["boxes"]])
    if "masks" in content:
        levels = zlib.decompress(base64.b64decode(content["masks"]))
        return np.frombuffer(levels, np.uint8).reshape(-1, *content["size"])
    return None if content["labels"] is None else np.array(content["labels"], np.int64)


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
