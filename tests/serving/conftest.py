"""Images whose class is known, and the fixtures of flows."""

import pytest
from fake_runs import seam
from finished_runs import finished, finished_home, folder, home, prefect_server, run
from small_images import gray_png

__all__ = ["finished", "finished_home", "folder", "home", "prefect_server", "run", "seam"]


@pytest.fixture(scope="session")
def white_png() -> bytes:
    return gray_png(255)


@pytest.fixture(scope="session")
def black_png() -> bytes:
    return gray_png(0)
