"""Small pictures in memory, one byte a channel: a quarter of the inputs that are made of them."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from tasks.data.dataset import Arrays
from tasks.data.preprocess import Layout, inputs_of
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.signature import Preprocessing

SUFFIX = ".pictures.npz"


class Recipe(Frozen):
    """How stored pictures become inputs."""

    how: Preprocessing
    layout: Layout
    name: str = "input"


@dataclass(frozen=True)
class PictureSplit:
    """Pictures of the size that the model takes, shape (n, height, width, channels); normalised when they are taken."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    recipe: Recipe

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: npt.NDArray[np.integer] | slice) -> Arrays:
        """Return the inputs of some samples."""
        return {self.recipe.name: inputs_of(self.pixels[indices], self.recipe.how, self.recipe.layout)}

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file with the pixels and the recipe."""
        path = folder / f"{name}{SUFFIX}"
        recipe = np.array(self.recipe.model_dump_json())
        np.savez(path, allow_pickle=False, pixels=self.pixels, labels=self.labels, recipe=recipe)
        return path

    @classmethod
    def load(cls, path: Path) -> "PictureSplit":
        """Read what `save` wrote.

        Raises:
            StageError: when the file is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["pixels"], file["labels"], Recipe.model_validate_json(str(file["recipe"])))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, ValidationError) as error:
            raise StageError(f"{path}: not a file of pictures that the data stage wrote ({error})") from error
