"""Small images in memory, one byte per channel: a quarter of the size of the inputs made from them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Layout, Preprocessing, Signature, TensorSpec
from gauntlet.datasets.splits import NPZ_ERRORS
from gauntlet.images.preprocessing import preprocess, preprocess_batch

SUFFIX = ".pictures.npz"


class ImageTransform(Frozen):
    """How stored images become inputs."""

    how: Preprocessing
    layout: Layout
    name: str = "input"

    def signature(self, labels: tuple[str, ...]) -> Signature:
        """Return the signature of a model that takes these inputs, without its outputs."""
        how, layout = self.how, "none" if self.how.hog else self.layout
        blank = np.zeros((how.height, how.width, len(how.mean)), np.uint8)
        spec = TensorSpec(name=self.name, dtype="float32", shape=("batch", *preprocess(blank, how, self.layout).shape))
        task = "classification" if labels else "arrays"
        return Signature(task=task, inputs=(spec,), outputs=(), layout=layout, preprocessing=how, labels=labels)


@dataclass(frozen=True)
class ImageArraySplit:
    """Images of the model's input size, shape (n, height, width, channels); normalized when they are read."""

    pixels: npt.NDArray[np.uint8]
    labels: Array
    transform: ImageTransform

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples."""
        images, how, layout = self.pixels[indices], self.transform.how, self.transform.layout
        if how.hog is not None and len(images):
            return {self.transform.name: np.stack([preprocess(image, how, layout) for image in images])}
        return {self.transform.name: preprocess_batch(images, how, layout)}

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file with the pixels, the labels and the transform."""
        path = folder / f"{name}{SUFFIX}"
        transform = np.array(self.transform.model_dump_json())
        np.savez(path, allow_pickle=False, pixels=self.pixels, labels=self.labels, recipe=transform)
        return path

    @classmethod
    def load(cls, path: Path) -> "ImageArraySplit":
        """Read what `save` wrote; raise StageError if the file is damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["pixels"], file["labels"], ImageTransform.model_validate_json(str(file["recipe"])))
        except NPZ_ERRORS as error:  # pydantic's ValidationError is a ValueError
            raise StageError(f"{path}: not an image file of the data stage ({error})") from error
