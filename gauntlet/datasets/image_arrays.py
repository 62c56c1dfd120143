"""Small pictures in memory, one byte a channel: a quarter of the inputs that are made of them."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.images.preprocessing import Layout, preprocess_batch

SUFFIX = ".pictures.npz"


class ImageTransform(Frozen):
    """How stored pictures become inputs."""

    how: Preprocessing
    layout: Layout
    name: str = "input"

    def signature(self, labels: tuple[str, ...]) -> Signature:
        """Return the contract of a model that takes such pictures, as far as they decide it."""
        how, channels = self.how, len(self.how.mean)
        shape = (channels, how.height, how.width) if self.layout == "NCHW" else (how.height, how.width, channels)
        spec = TensorSpec(name=self.name, dtype="float32", shape=("batch", *shape))
        return Signature(inputs=(spec,), outputs=(), layout=self.layout, preprocessing=how, labels=labels)


@dataclass(frozen=True)
class ImageArraySplit:
    """Pictures of the size that the model takes, shape (n, height, width, channels); normalised when they are taken."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    recipe: ImageTransform

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples."""
        return {self.recipe.name: preprocess_batch(self.pixels[indices], self.recipe.how, self.recipe.layout)}

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file with the pixels and the recipe."""
        path = folder / f"{name}{SUFFIX}"
        recipe = np.array(self.recipe.model_dump_json())
        np.savez(path, allow_pickle=False, pixels=self.pixels, labels=self.labels, recipe=recipe)
        return path

    @classmethod
    def load(cls, path: Path) -> "ImageArraySplit":
        """Read what `save` wrote.

        Raises:
            StageError: when the file is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["pixels"], file["labels"], ImageTransform.model_validate_json(str(file["recipe"])))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, ValidationError) as error:
            raise StageError(f"{path}: not a file of pictures that the data stage wrote ({error})") from error
