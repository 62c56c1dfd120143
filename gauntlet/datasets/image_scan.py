"""Read every file of an image folder once: its digests, or why it cannot be used."""

import hashlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gauntlet.core.errors import StageError
from gauntlet.core.workspace import steps_log
from gauntlet.datasets.directory_index import DirectoryIndex, printable_name
from gauntlet.datasets.image_files import map_in_threads
from gauntlet.datasets.near_duplicates import Fingerprint, fingerprint
from gauntlet.datasets.splits import SkippedFile
from gauntlet.images.decoding import decode_image

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
