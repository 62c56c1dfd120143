"""The source framework's word, saved once: inputs, and what the trained model itself answered for them.

Every later stage compares with this file, so none of them imports a training framework.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Golden:
    """Inputs and outputs by tensor name, each of shape (n, ...).

    `trace` holds, for the first real input alone, what each module of the source computed, by the module's path: it
    tells where a broken model leaves the right way.
    """

    inputs: Arrays
    outputs: Arrays
    labels: npt.NDArray[np.int64]
    random_inputs: Arrays
    random_outputs: Arrays
    trace: Arrays = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write all of it to one `.npz` file."""
        groups = {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "random_inputs": self.random_inputs,
            "random_outputs": self.random_outputs,
            "trace": self.trace,
        }
        flat = {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
        np.savez(path, allow_pickle=False, labels=self.labels, **flat)

    @classmethod
    def load(cls, path: Path) -> "Golden":
        """Read what `save` wrote."""
        groups: dict[str, Arrays] = {g: {} for g in ("inputs", "outputs", "random_inputs", "random_outputs", "trace")}
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                group, _, name = key.partition("/")
                if name:
                    groups[group][name] = file[key]
            return cls(labels=file["labels"], **groups)


def head(arrays: Arrays, count: int) -> Arrays:
    """Return the first `count` samples of every array."""
    return {name: array[:count] for name, array in arrays.items()}
