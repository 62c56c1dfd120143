"""Vectors in clouds, one cloud a class: what scikit-learn's models are tried on."""

import numpy as np

from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.splits import ArraySplit

SIZES = {"train": 150, "validation": 30, "calibration": 10, "test": 60}
NAMES = ("apple", "pear", "quince")


def clouds(classes: int = 3, features: int = 6, dtype: type = np.float32) -> dict[str, ArraySplit]:
    """Return splits with one cloud of points a class, near enough to overlap a little."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((classes, features)) * 2
    splits = {}
    for name, size in SIZES.items():
        labels = np.arange(size) % classes
        points = centres[labels] + rng.standard_normal((size, features))
        splits[name] = ArraySplit({"features": points.astype(dtype)}, labels.astype(np.int64))
    return splits


def signature_of(splits: dict[str, ArraySplit], labels: tuple[str, ...] = NAMES) -> Signature:
    inputs = tuple(
        TensorSpec(
            name=name, dtype="str" if array.dtype.kind == "U" else array.dtype.name, shape=("batch", *array.shape[1:])
        )
        for name, array in splits["test"].inputs.items()
    )
    return Signature(inputs=inputs, outputs=(), layout="none", labels=labels)
