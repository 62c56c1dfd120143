"""The user's own arrays: `.npz` files with one array an input, and labels where there are any."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.splits import SPLITS, ArraySplit, Dataset, read_npz_split
from gauntlet.datasets.splitting import SplitFractions, split_indices

NAMED = 10
"""Files that a message names."""


class NpzArrays(Frozen):
    """One `.npz` file, or a folder of them, with one array an input under its name, and `labels` where there are any.

    A folder whose files are called as the splits holds one file a split; every other folder holds parts of one set, in
    the order of their names. A set that is not split yet is split here.
    """

    kind: Literal["arrays"] = "arrays"
    path: Path = Field(description="the file or folder; arrays are model-ready, shape (samples, ...)")
    labels: tuple[str, ...] = Field((), description="the classes' names, in the order of the label numbers")
    layout: Literal["NCHW", "NHWC", "none"] = "NCHW"
    split_fractions: SplitFractions = Field(
        default_factory=SplitFractions, description="how one set is split; a folder of splits is left alone"
    )
    seed: int = Field(0, ge=0, description="decides which sample is in which split")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        if not self.path.is_dir():
            return (self.path,)
        order = {f"{name}.npz": place for place, name in enumerate(SPLITS)}
        return tuple(sorted(self.path.glob("*.npz"), key=lambda path: (order.get(path.name, len(order)), path.name)))

    def load(self) -> Dataset:
        """Read the splits, or read one set and split it.

        Raises:
            StageError: when a file is missing or unreadable, the shapes differ, or a label has no name.
        """
        files = self.files()
        if not files:
            raise StageError(f"{self.path}: no .npz file in this folder")
        divided = self._is_divided(files)
        parts = _read(files)
        shapes = {
            path.name: {n: (_dtype(a), *a.shape[1:]) for n, a in part.inputs.items()} for path, part in parts.items()
        }
        if any(shape != next(iter(shapes.values())) for shape in shapes.values()):
            raise StageError(f"{self.path}: the files' arrays differ in name, type or shape: {shapes}")
        known = [part.labels is not None for part in parts.values()]
        if any(known) and not all(known):
            bare = [path.name for path, part in parts.items() if part.labels is None]
            raise StageError(
                f"{self.path}: {bare} have no 'labels', the other files do; give all of them labels, or none"
            )
        names = self._names(parts)
        first = next(iter(parts.values()))
        inputs = tuple(
            TensorSpec(name=name, dtype=_dtype(array), shape=("batch", *array.shape[1:]))
            for name, array in first.inputs.items()
        )
        task: Literal["classification", "arrays"] = "classification" if names else "arrays"
        pictures = any(array.ndim == 4 for array in first.inputs.values())
        layout = self.layout if pictures else "none"
        signature = Signature(task=task, inputs=inputs, outputs=(), layout=layout, labels=names)
        if divided:
            return Dataset({path.stem: part for path, part in parts.items()}, signature)
        whole = _joined(list(parts.values()))
        places = split_indices(len(whole), whole.labels, self.split_fractions, self.seed)
        return Dataset(
            {
                name: ArraySplit(whole.take(chosen), None if whole.labels is None else whole.labels[chosen])
                for name, chosen in places.items()
            },
            signature,
        )

    def _is_divided(self, files: tuple[Path, ...]) -> bool:
        """Tell whether there is one file a split."""
        splits = [path.name for path in files if path.stem in SPLITS]
        others = [path.name for path in files if path.stem not in SPLITS]
        if not self.path.is_dir() or not splits:
            return False
        if others or "test.npz" not in splits:
            raise StageError(
                f"{self.path}: {splits} are splits"
                + (f", {others[:5]} are not" if others else ", but there is no test.npz")
                + f"; one file a split is wanted ({', '.join(f'{name}.npz' for name in SPLITS)}; test.npz at least), "
                "or parts of one set under other names"
            )
        return True

    def _names(self, parts: dict[Path, ArraySplit]) -> tuple[str, ...]:
        """Return the classes' names; numbers where nobody named them."""
        found = {path: part.labels for path, part in parts.items() if part.labels is not None}
        highest = max((int(labels.max()) for labels in found.values()), default=-1)
        names = self.labels or tuple(str(number) for number in range(highest + 1))
        for path, labels in found.items():
            wrong = sorted({int(label) for label in labels if not 0 <= label < len(names)})
            if wrong:
                raise StageError(
                    f"{path}: labels {wrong[:10]} are out of range; "
                    f"data.labels names {len(names)} classes, so 0 to {len(names) - 1} are allowed"
                )
        return names if found else ()


def _read(files: tuple[Path, ...]) -> dict[Path, ArraySplit]:
    """Read all files, or name all that cannot be read."""
    parts: dict[Path, ArraySplit] = {}
    errors: list[str] = []
    for path in files:
        try:
            parts[path] = read_npz_split(path)
        except StageError as error:
            errors.append(str(error))
            continue
        odd = [name for name, array in parts[path].inputs.items() if array.dtype.kind not in "fiubU"]
        if odd:
            errors.append(
                f"{path}: {odd[0]!r} is {parts[path].inputs[odd[0]].dtype}; numbers, truth values or texts are wanted"
            )
    if len(errors) > 1:
        rest = f"\nand {len(errors) - NAMED} more" if len(errors) > NAMED else ""
        raise StageError(f"{len(errors)} of {len(files)} files cannot be used:\n" + "\n".join(errors[:NAMED]) + rest)
    if errors:
        raise StageError(errors[0])
    return parts


def _joined(parts: list[ArraySplit]) -> ArraySplit:
    inputs = {name: np.concatenate([part.inputs[name] for part in parts]) for name in parts[0].inputs}
    labels = [part.labels for part in parts if part.labels is not None]
    return ArraySplit(inputs, np.concatenate(labels) if labels else None)


def _dtype(array: np.ndarray) -> str:
    return "str" if array.dtype.kind == "U" else array.dtype.name
