"""A split whose samples are partly in another form than arrays in memory, for example in image files."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.splits import NPZ_ERRORS, ArraySplit, Split


@dataclass(frozen=True)
class ExtendedSplit:
    """The samples of a split that is not an array in memory, and behind them further ones that are."""

    SUFFIX: ClassVar = ".extended.npz"
    base: Split
    extra: ArraySplit

    @property
    def parts(self) -> tuple[Split, Split]:
        """The splits that this one joins."""
        return self.base, self.extra

    @property
    def labels(self) -> Array:
        """The truth of all samples."""
        assert self.base.labels is not None and self.extra.labels is not None
        return np.concatenate([self.base.labels, self.extra.labels])

    def __len__(self) -> int:
        return len(self.base) + len(self.extra)

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples."""
        chosen = np.arange(len(self))[indices] if isinstance(indices, slice) else np.asarray(indices)
        own = chosen < len(self.base)
        parts = [self.base.take(chosen[own])] if own.any() else []
        parts += [self.extra.take(chosen[~own] - len(self.base))] if not own.all() or not parts else []
        order = np.argsort(np.concatenate([np.flatnonzero(own), np.flatnonzero(~own)]))
        return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file with the further samples, and with the file of the others as bytes."""
        path = folder / f"{name}{self.SUFFIX}"
        base = self.base.save(folder, f"{name}-base")
        inputs = {f"inputs/{key}": array for key, array in self.extra.inputs.items()}
        content = np.frombuffer(base.read_bytes(), np.uint8)
        labels = self.labels[len(self.base) :]
        np.savez(path, allow_pickle=False, base=content, base_name=base.name, labels=labels, **inputs)
        base.unlink()
        return path

    @classmethod
    def load(cls, path: Path, read: Callable[[Path], Split]) -> "ExtendedSplit":
        """Read what `save` wrote; `read` opens the other split's file. Raise StageError if the file is damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                inputs = {key.partition("/")[2]: file[key] for key in file.files if key.startswith("inputs/")}
                extra, content, name = ArraySplit(inputs, file["labels"]), file["base"], str(file["base_name"])
        except NPZ_ERRORS as error:
            raise StageError(f"{path}: not an extended split of the data stage ({error})") from error
        with tempfile.TemporaryDirectory(prefix="gauntlet-split-") as folder:
            base = Path(folder) / Path(name).name
            base.write_bytes(content.tobytes())
            return cls(read(base), extra)
