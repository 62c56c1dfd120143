"""Images whose class is known."""

import pytest
from small_pngs import gray_png


@pytest.fixture(scope="session")
def white_png() -> bytes:
    return gray_png(255)


@pytest.fixture(scope="session")
def black_png() -> bytes:
    return gray_png(0)
