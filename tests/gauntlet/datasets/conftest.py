"""Small data in the real formats, below the folder of each test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small_images import write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes `count` different PNG files into each of some folders below `tmp_path/pictures`."""

    def write(*folders: str, count: int = 10, **shape: int) -> Path:
        return write_pictures(tmp_path / "pictures", *folders, count=count, **shape)

    return write
