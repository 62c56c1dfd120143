"""Open a split that the data stage has stored, whatever its format."""

from pathlib import Path
from typing import cast

from gauntlet.core.kinds import kinds
from gauntlet.datasets import image_arrays, image_files
from gauntlet.datasets.image_arrays import ImageArraySplit
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import Split, read_npz_split


def read_split(path: Path) -> Split:
    """Return the split in a file of the data stage; raise StageError if it cannot be read."""
    if path.name.endswith(image_files.SUFFIX):
        return ImageFileSplit.load(path)
    if path.name.endswith(image_arrays.SUFFIX):
        return ImageArraySplit.load(path)
    for kind in kinds("split").values():
        if path.name.endswith(kind.SUFFIX):
            return cast("Split", kind.load(path, read_split))
    return read_npz_split(path)
