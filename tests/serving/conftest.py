"""Images whose class is known."""

import io

import pytest
from PIL import Image


def png(level: int) -> bytes:
    """Return a gray image."""
    buffer = io.BytesIO()
    Image.new("L", (12, 10), level).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def white_png() -> bytes:
    return png(255)


@pytest.fixture(scope="session")
def black_png() -> bytes:
    return png(0)
