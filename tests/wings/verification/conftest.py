"""A bundle that a test may change."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(signed: Path, tmp_path: Path) -> Path:
    """A signed bundle as a folder, which a test may change."""
    shutil.unpack_archive(signed, tmp_path / "digits")
    return tmp_path / "digits"
