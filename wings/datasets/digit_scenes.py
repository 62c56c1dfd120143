"""Scenes of scikit-learn's handwritten digits on its photographs: a small detection problem that needs no download."""

from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from pydantic import Field, model_validator

from gauntlet.core.signature import Preprocessing
from gauntlet.datasets.digits import MAX_PIXEL_VALUE
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.splits import SPLITS, Dataset, DataSource, Splits
from wings.datasets.annotations import padded_boxes

LABELS = tuple("0123456789")
BACKGROUND = "background"
SHARES = {"train": 0.7, "validation": 0.1, "calibration": 0.05, "test": 0.15}
"""Of the digits: no handwritten digit is in two splits."""
INK = 96
"""Least coverage, of 255, of the pixels that a digit's box encloses."""
MAX_COVERED = 0.3
"""Share of a digit's box that another one may cover."""
ATTEMPTS = 20
"""To find a place for a digit; then the scene has one less."""
MIN_CONTRAST = 70
"""Between the brightness of a digit and of the ground below it, of 255."""
BRIGHTNESS = np.array([0.299, 0.587, 0.114])

Pixels = npt.NDArray[np.uint8]


class DigitScenes(DataSource):
    """RGB images of one to twelve digits in any size, color and place, among lines, rectangles and ellipses.

    The ground is a part of one of the two photographs that scikit-learn ships; test scenes show another half of each
    than all others, and other digits. Of two digits, the later one lies on top.
    """

    internal = ("max_digits", "digit_size")
    kind: Literal["digit-scenes"] = "digit-scenes"
    truth: Literal["boxes", "masks"] = Field(
        "boxes", description="labels: a box for each digit (detection), or the class of each pixel (segmentation)"
    )
    image_size: int = Field(96, ge=48, le=320, multiple_of=8, description="height and width of an image, in pixels")
    train_images: int = Field(12_000, ge=10, le=100_000)
    validation_images: int = Field(300, ge=10, le=10_000, description="images that select the best epoch")
    calibration_images: int = Field(256, ge=10, le=10_000, description="images that set quantization ranges")
    test_images: int = Field(800, ge=10, le=10_000, description="images for every accuracy")
    max_digits: int = Field(12, ge=1, le=30, description="digits in an image, at most; at least one")
    digit_size: tuple[int, int] = Field((10, 28), description="smallest and largest height of a digit, in pixels")
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _digits_fit(self) -> Self:
        low, high = self.digit_size
        if not 6 <= low <= high <= self.image_size // 2:
            allowed = f"6 <= smallest <= largest <= {self.image_size // 2}, half of image_size"
            raise ValueError(f"digit_size: {list(self.digit_size)}; {allowed}")
        return self

    def load(self) -> Dataset:
        """Draw the scenes of the four splits; the same seed gives the same pixels."""
        from sklearn.datasets import load_digits, load_sample_images

        digits, photographs = load_digits(), load_sample_images().images
        order = np.random.default_rng(self.seed).permutation(len(digits.images))
        bounds = np.cumsum([round(len(order) * share) for share in SHARES.values()])[:-1]
        chosen = dict(zip(SHARES, np.split(order, bounds), strict=True))
        size = self.image_size
        how = Preprocessing(height=size, width=size, scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3, resize="stretch")
        transform = ImageTransform(how=how, layout="NCHW")
        splits: Splits = {
            name: self._split(
                getattr(self, f"{name}_images"),
                [(_mask(digits.images[i]), int(digits.target[i])) for i in chosen[name]],
                [_half(photograph, right=name == "test") for photograph in photographs],
                transform,
                np.random.default_rng([self.seed, number]),
            )
            for number, name in enumerate(SPLITS)
        }
        if self.truth == "masks":
            return Dataset(splits, transform.signature((BACKGROUND, *LABELS)).replace(task="segmentation"))
        return Dataset(splits, transform.signature(LABELS).replace(task="detection"))

    def _split(
        self,
        count: int,
        digits: list[tuple[Image.Image, int]],
        grounds: list[Image.Image],
        transform: ImageTransform,
        rng: np.random.Generator,
    ) -> ImageArraySplit:
        """Draw `count` scenes; labels are boxes, see `wings.detection.detection`, or masks, shape (count, h, w)."""
        size = self.image_size
        pixels, masks = np.empty((count, size, size, 3), np.uint8), np.empty((count, size, size), np.uint8)
        scenes = []
        for index in range(count):
            scene, mask = self._ground(grounds, rng), Image.new("L", (size, size))
            rows = self._place_digits(scene, mask, digits, rng)
            pixels[index], masks[index] = np.asarray(scene), np.asarray(mask)
            scenes.append(np.array(rows, np.float32))
        return ImageArraySplit(pixels, masks if self.truth == "masks" else padded_boxes(scenes), transform)

    def _ground(self, grounds: list[Image.Image], rng: np.random.Generator) -> Image.Image:
        """Return a part of a photograph, at any scale, with a few shapes on it."""
        photograph, size = grounds[rng.integers(len(grounds))], self.image_size
        side = int(rng.integers(size, min(photograph.size) + 1)) if min(photograph.size) > size else size
        left, top = (int(rng.integers(0, max(1, extent - side + 1))) for extent in photograph.size)
        part = (left, top, left + side, top + side)
        scene = photograph.resize((size, size), Image.Resampling.BILINEAR, part)
        pen = ImageDraw.Draw(scene)
        for _ in range(int(rng.integers(0, 6))):
            x, y, wide, high = rng.integers(0, size, 4).tolist()
            color, width = tuple(rng.integers(0, 256, 3).tolist()), int(rng.integers(1, 4))
            box = (x, y, x + wide // 3, y + high // 3)
            shape = int(rng.integers(3))
            if shape == 0:
                pen.line(box, color, width)
            else:
                (pen.rectangle if shape == 1 else pen.ellipse)(box, outline=color, width=width)
        return scene

    def _place_digits(
        self, scene: Image.Image, classes: Image.Image, digits: list[tuple[Image.Image, int]], rng: np.random.Generator
    ) -> list[tuple[float, ...]]:
        """Draw digits on the scene, and their classes (from 1 on) on the mask; return their boxes.

        At least one digit finds a place.
        """
        rows: list[tuple[float, ...]] = []
        for _ in range(int(rng.integers(1, self.max_digits + 1))):
            mask, label = digits[rng.integers(len(digits))]
            height = int(rng.integers(self.digit_size[0], self.digit_size[1] + 1))
            mask = mask.resize((max(4, round(height * rng.uniform(0.8, 1.1))), height), Image.Resampling.BICUBIC)
            inked = mask.point(lambda value: 255 * (value >= INK))
            ink = inked.getbbox()
            place = self._free_place(mask.size, ink, rows, rng) if ink else None
            if place is None or ink is None:
                continue
            left, top = place
            under = np.asarray(scene.crop((left, top, left + mask.width, top + mask.height)))
            scene.paste(_color(under, rng), place, mask)
            classes.paste(label + 1, place, inked)
            rows.append((left + ink[0], top + ink[1], left + ink[2], top + ink[3], label, 1))
        return rows

    def _free_place(
        self,
        size: tuple[int, int],
        ink: tuple[int, int, int, int],
        rows: list[tuple[float, ...]],
        rng: np.random.Generator,
    ) -> tuple[int, int] | None:
        """Return where a digit's left upper corner may be, so that no digit covers too much of another."""
        for _ in range(ATTEMPTS):
            left, top = (int(rng.integers(0, self.image_size - extent + 1)) for extent in size)
            box = (left + ink[0], top + ink[1], left + ink[2], top + ink[3])
            if all(_covered(box, row) <= MAX_COVERED for row in rows):
                return left, top
        return None


def _mask(digit: npt.NDArray[np.float64]) -> Image.Image:
    """Return a digit of 8x8 pixels as coverage from 0 to 255."""
    return Image.fromarray(np.round(digit * (255 / MAX_PIXEL_VALUE)).astype(np.uint8))


def _half(photograph: Pixels, *, right: bool) -> Image.Image:
    middle = photograph.shape[1] // 2
    return Image.fromarray(np.ascontiguousarray(photograph[:, middle:] if right else photograph[:, :middle]))


def _color(under: Pixels, rng: np.random.Generator) -> tuple[int, int, int]:
    """Return a color of another brightness than the ground."""
    ground = float((under.reshape(-1, 3) @ BRIGHTNESS).mean())
    while True:
        red, green, blue = rng.integers(0, 256, 3).tolist()
        if abs(float(np.dot((red, green, blue), BRIGHTNESS)) - ground) >= MIN_CONTRAST:
            return red, green, blue


def _covered(first: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the shared area as a share of the smaller of two boxes."""
    width = min(first[2], other[2]) - max(first[0], other[0])
    height = min(first[3], other[3]) - max(first[1], other[1])
    areas = ((box[2] - box[0]) * (box[3] - box[1]) for box in (first, other))
    return max(width, 0) * max(height, 0) / min(areas)
