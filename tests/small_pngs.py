"""Image files of one color."""

import io

from PIL import Image


def gray_png(level: int) -> bytes:
    """Return a gray image of 12 x 10 pixels."""
    buffer = io.BytesIO()
    Image.new("L", (12, 10), level).save(buffer, "PNG")
    return buffer.getvalue()
