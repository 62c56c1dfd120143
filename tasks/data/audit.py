"""What makes every later number a lie: leaked images, classes without images, values that are no numbers."""

import hashlib

import numpy as np

from tasks.data.dataset import SPLITS, Dataset
from tasks.report import Check


def audit(dataset: Dataset) -> tuple[Check, ...]:
    """Check that no image is in two splits (by content), no class is empty, and every value is finite."""
    homes: dict[str, dict[str, int]] = {}
    for name in SPLITS:
        for index, image in enumerate(dataset.splits[name].inputs):
            homes.setdefault(hashlib.sha256(image.tobytes()).hexdigest(), {})[name] = index
    leaked = [home for home in homes.values() if len(home) > 1]
    empty = [
        f"{name}: {label}"
        for name in ("train", "test")
        for number, label in enumerate(dataset.signature.labels)
        if not np.any(dataset.splits[name].labels == number)
    ]
    broken = {name: int(np.sum(~np.isfinite(dataset.splits[name].inputs))) for name in SPLITS}
    return (
        Check(
            name="data.leaked_images",
            value=len(leaked),
            op="==",
            limit=0,
            unit="images",
            detail="; ".join(_where(home) for home in leaked[:3]),
            remedy="remove the copies from all splits but one",
        ),
        Check(
            name="data.empty_classes",
            value=len(empty),
            op="==",
            limit=0,
            unit="classes",
            detail=", ".join(empty[:5]),
            remedy="add images of the class, or take it out of data.labels",
        ),
        Check(
            name="data.non_finite_values",
            value=sum(broken.values()),
            op="==",
            limit=0,
            unit="values",
            detail=", ".join(f"{name}: {n}" for name, n in broken.items() if n),
            remedy="replace NaN and infinity in the inputs",
        ),
    )


def _where(home: dict[str, int]) -> str:
    return "the same image is " + " and ".join(f"{name}[{index}]" for name, index in home.items())
