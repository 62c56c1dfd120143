"""ORT's quantiser writes scratch files beside the model that it reads, and the store's folders are not for that."""

import shutil
from pathlib import Path

from tasks.model_file import files_of


def copied(model: Path, folder: Path) -> Path:
    """Copy the model and the files with its weights to the folder; return the model's copy."""
    for file in files_of(model):
        place = folder / file.relative_to(model.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return folder / model.name
