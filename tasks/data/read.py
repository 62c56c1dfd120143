"""Opens a split that the data stage has kept, whatever form it has."""

from pathlib import Path

from tasks.data import files, pictures
from tasks.data.dataset import Split, read_arrays
from tasks.data.files import FileSplit
from tasks.data.pictures import PictureSplit


def read_split(path: Path) -> Split:
    """Return the split in a file of the data stage.

    Raises:
        StageError: when the file, or one that it names, cannot be read.
    """
    if path.name.endswith(files.SUFFIX):
        return FileSplit.load(path)
    if path.name.endswith(pictures.SUFFIX):
        return PictureSplit.load(path)
    return read_arrays(path)
