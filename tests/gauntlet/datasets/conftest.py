"""Small data in the real formats, below the folder of each test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small_images import write_pictures

from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.image_folder import ImageFolder
from tasks.data import DataFacts

Write = Callable[..., Path]
Make = Callable[..., Workspace]


def config(path: Path, **changes: object) -> ImageFolder:
    return ImageFolder.model_validate({"path": path, "image_size": (8, 10)} | changes)


def failed(report: Report[DataFacts]) -> dict[str, float | None]:
    return {check.name.removeprefix("data."): check.value for check in report.failures}


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes `count` different PNG files into each of some folders below `tmp_path/pictures`."""

    def write(*folders: str, count: int = 10, **shape: int) -> Path:
        return write_pictures(tmp_path / "pictures", *folders, count=count, **shape)

    return write
