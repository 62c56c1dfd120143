"""Pictures that stay in the user's folder: a list of files, each decoded when it is asked for."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.images.decoding import decode_image
from gauntlet.images.preprocessing import preprocess

SUFFIX = ".files.json"
THREADS = min(4, os.cpu_count() or 1)

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ImageFileSplit:
    """Pictures in files below `root`, which the model's preprocessing turns into inputs.

    Of each picture, the name, the label and the file's digest are in memory; the digest of its pixels too, where the
    data stage has just read them.
    """

    root: Path
    files: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    digests: tuple[bytes, ...]
    recipe: ImageTransform
    pixel_digests: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Decode some pictures, a few at once.

        Raises:
            StageError: naming the file, when one is gone or was changed since the data stage read it.
        """
        numbers = range(len(self))[indices] if isinstance(indices, slice) else indices.tolist()
        inputs = map_in_threads(self._input, numbers)
        return {self.recipe.name: np.stack(inputs)}

    def _input(self, number: int) -> npt.NDArray[np.float32]:
        path = self.root / self.files[number]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StageError(
                f"{path}: the data stage read this picture, now it cannot be read ({error.strerror}); "
                "put it back, or run again with --fresh: the data stage then reads the folder anew"
            ) from error
        if hashlib.sha256(content).digest() != self.digests[number]:
            raise StageError(
                f"{path}: changed after the data stage read it; "
                "run again with --fresh: the data stage then reads the folder anew"
            )
        return preprocess(decode_image(content, len(self.recipe.how.mean)), self.recipe.how, self.recipe.layout)

    def save(self, folder: Path, name: str) -> Path:
        """Write the list; the pictures stay where they are."""
        path = folder / f"{name}{SUFFIX}"
        content = {
            "root": str(self.root),
            "recipe": self.recipe.model_dump(mode="json"),
            "files": self.files,
            "labels": self.labels.tolist(),
            "sha256": [digest.hex() for digest in self.digests],
        }
        path.write_text(json.dumps(content, indent=0), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> "ImageFileSplit":
        """Read what `save` wrote.

        Raises:
            StageError: when the list is damaged.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                Path(content["root"]),
                tuple(content["files"]),
                np.array(content["labels"], np.int64),
                tuple(map(bytes.fromhex, content["sha256"])),
                ImageTransform.model_validate(content["recipe"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StageError(f"{path}: not a list of pictures that the data stage wrote ({error})") from error


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply the function to all items, a few at once; decoding leaves Python's lock to others."""
    with warnings.catch_warnings(), ThreadPoolExecutor(THREADS) as pool:
        warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd metadata; what matters is an error
        return list(pool.map(function, items))
