"""The user's own arrays: a folder with one `.npz` file a split."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.data.dataset import SPLITS, Dataset, read_split
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.signature import Signature, TensorSpec


class Arrays(Frozen):
    """A folder with train.npz, validation.npz, calibration.npz and test.npz, each with `inputs` and `labels`."""

    kind: Literal["arrays"] = "arrays"
    folder: Path = Field(description="the folder; inputs are model-ready, shape (n, channels, height, width)")
    labels: tuple[str, ...] = Field(description="the classes' names, in the order of the label numbers")
    layout: Literal["NCHW", "NHWC", "none"] = "NCHW"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return tuple(self.folder / f"{name}.npz" for name in SPLITS)

    def load(self) -> Dataset:
        """Read the four splits.

        Raises:
            StageError: when a file is missing or unreadable, the shapes differ, or a label has no name.
        """
        splits = {path.stem: read_split(path) for path in self.files()}
        shapes = {name: split.inputs.shape[1:] for name, split in splits.items()}
        if len(set(shapes.values())) != 1:
            raise StageError(f"{self.folder}: the splits' inputs differ in shape: {shapes}")
        for name, split in splits.items():
            wrong = [int(label) for label in set(split.labels.tolist()) if not 0 <= label < len(self.labels)]
            if wrong:
                raise StageError(
                    f"{self.folder / name}.npz: labels {sorted(wrong)} are out of range; "
                    f"data.labels names {len(self.labels)} classes, so 0 to {len(self.labels) - 1} are allowed"
                )
        shape = shapes["train"]
        signature = Signature(
            inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", *shape)),),
            outputs=(),
            layout=self.layout,
            labels=self.labels,
        )
        return Dataset(splits, signature)
