"""Base class of predictions, and a line of text under an image."""

from typing import Self

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Preprocessing


class Prediction(Frozen):
    """What a model says of one sample, in the terms of its problem."""

    def lines(self) -> list[str]:
        """Return the prediction for people, the most important part first."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the prediction in one line, for a table."""
        return ", ".join(self.lines())

    def on_image(self, height: int, width: int, how: Preprocessing) -> Self:
        """Return the prediction in the pixels of the image of this size, which `how` turns into the model's input."""
        return self


MIN_WIDTH = 320
"""Pixels; smaller images are enlarged by a whole factor, so that their pixels stay visible."""
MAX_CHARACTERS = 200
INK, PAPER = (20, 20, 20), (245, 245, 245)
DRAWINGS = "drawings"
"""Name of the artifact of a stage that draws predictions."""


def enlarged(pixels: Array) -> tuple[Array, int]:
    """Return an image, shape (height, width, 1 or 3), as RGB at least `MIN_WIDTH` wide, and the whole factor."""
    plain = np.asarray(pixels, np.uint8)
    factor = max(1, -(-MIN_WIDTH // plain.shape[1]))
    color = np.repeat(plain, 3, axis=2) if plain.shape[2] == 1 else plain
    return color.repeat(factor, axis=0).repeat(factor, axis=1), factor


def with_caption(pixels: Array, text: str) -> Array:
    """Return an image, shape (height, width, 1 or 3), with lines of text below, as RGB of shape (h, w, 3)."""
    image = Image.fromarray(enlarged(pixels)[0])
    size = max(14, image.width // 28)
    font, lines = ImageFont.load_default(size), [line[:MAX_CHARACTERS] for line in text.split("\n")]
    height = round(1.4 * size)
    canvas = Image.new("RGB", (image.width, image.height + height * len(lines) + size // 2), PAPER)
    canvas.paste(image, (0, 0))
    draw = ImageDraw.Draw(canvas)
    for number, line in enumerate(lines):
        draw.text((size // 2, image.height + size // 4 + number * height), line, INK, font)
    return np.asarray(canvas)
