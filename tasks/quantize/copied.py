"""ORT's quantiser writes scratch files beside the model that it reads, and the store's folders are not for that."""

from pathlib import Path

from tasks.model_file import copy_model


def copied(model: Path, folder: Path) -> Path:
    """Copy the model to the folder, with its weights beside it; return the model's copy."""
    copy_model(model, folder / model.name)
    return folder / model.name
